from runtime.config.flat import flatten, prefixes, with_groups
from runtime.config.nearest import nearest_key


def test_a_slip_and_a_wrong_group_are_both_found():
    keys = ["actor.optim.lr", "critic.optim.lr", "data.shuffle", "actor.shuffle"]
    assert nearest_key("actor.optm.lr", keys)[0] == "actor.optim.lr"
    assert nearest_key("critic.lr", keys)[0] == "critic.optim.lr"
    assert nearest_key("data.shufle", keys)[0] == "data.shuffle"


def test_likeness_is_one_for_the_key_itself():
    assert nearest_key("a.b", ["a.b", "a.c"]) == ("a.b", 1.0)


def test_ties_go_to_the_alphabet():
    assert nearest_key("z", ["b", "a"])[0] == "a"


def test_flat_keys():
    assert dict(flatten({"a": {"b": [1], "c": {}}, "d": None})) == {"a.b": [1], "a.c": {}, "d": None}
    assert list(prefixes("a")) == []
    assert with_groups(["a.b.c"]) == {"a", "a.b", "a.b.c"}
