import pytest

from shared_algos.advantages import ADVANTAGES, register_advantage
from shared_algos.errors import AlgorithmError, DuplicateAlgorithmError, UnknownAlgorithmError
from shared_algos.registry import Level, Registry


def make(module="user"):
    def estimate():
        return 1

    estimate.__module__ = module
    return estimate


def test_an_entry_declares_what_it_needs():
    entry = ADVANTAGES.get("gae")
    assert (entry.needs, entry.level, entry.reference) == (frozenset({"values"}), Level.TOKEN, "GAE arXiv:1506.02438")
    assert ADVANTAGES.get("grpo").level is Level.OUTCOME


def test_aliases_are_one_function():
    assert ADVANTAGES.get("grpo_vectorized").function is ADVANTAGES.get("grpo").function


def test_the_same_source_twice_is_a_no_op():
    registry = Registry("loss")
    first, again = make(), make()
    registry.register("a", needs={"x"})(first)
    registry.register("a", needs={"x"})(again)
    assert registry.get("a").function is first


def test_another_source_under_a_taken_name_is_refused():
    registry = Registry("loss")
    registry.register("a")(make())
    with pytest.raises(DuplicateAlgorithmError, match=r"loss 'a' is already user\.make.*register other\.make"):
        registry.register("a")(make("other"))


def test_a_function_that_may_replace_takes_a_name_over_with_a_warning(caplog):
    registry = Registry("loss")
    registry.register("a")(make())
    theirs = make("other")
    registry.register("a", replace=True)(theirs)
    assert registry.get("a").function is theirs
    assert "loss 'a' is other.make" in caplog.text
    assert "no longer user.make" in caplog.text


def test_an_unknown_name_gets_the_nearest_known():
    with pytest.raises(UnknownAlgorithmError, match="unknown advantage estimator 'grppo'; did you mean 'grpo'"):
        ADVANTAGES.get("grppo")


def test_an_unknown_name_far_from_all_gets_all():
    registry = Registry("loss")
    registry.register("a", "b")(make())
    with pytest.raises(UnknownAlgorithmError, match="'a' or 'b'"):
        registry.get("zzz")


def test_a_need_that_is_no_input_is_refused():
    with pytest.raises(AlgorithmError, match=r"\['valuez'\]"):
        register_advantage("mine", needs={"valuez"})
