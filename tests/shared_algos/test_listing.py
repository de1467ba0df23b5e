"""docs/algorithms.md holds the tables of the registry as it is."""

from pathlib import Path

from shared_algos.advantages import ADVANTAGES
from shared_algos.listing import fill
from shared_algos.policy_losses import POLICY_LOSSES

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def test_the_page_is_made_from_the_registry():
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text) == text, "run `make docs`"
    for name in (*ADVANTAGES.names(), *POLICY_LOSSES.names()):
        assert f"`{name}`" in text


def test_every_entry_says_where_it_comes_from():
    for registry in (ADVANTAGES, POLICY_LOSSES):
        entries = [registry.get(name) for name in registry.names()]
        assert [entry.name for entry in entries if not entry.reference or not entry.function.__doc__] == []


def test_the_example_of_the_page_runs():
    example = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, str(PAGE), "exec"), {})
