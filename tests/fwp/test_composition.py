"""slow net × update rule × fast net closes: everything has a name, a width and a way to and from strings."""

import itertools

import pytest

from rfwp.errors import InvalidInput, UnknownName
from rfwp.fwp import ZOO, Composition, composition
from rfwp.fwp.fast import FAST, MLP, RNN, AuthorsMLP, Linear
from rfwp.fwp.maps import MAPS
from rfwp.fwp.rules import RULES, Delta, delta_rule
from rfwp.fwp.slow import SLOW


def test_systematic_names_are_those_of_the_appendix():
    assert ZOO["rdn"].name == "Recurrent/Delta fast Linear Net"
    assert ZOO["delta_rnn"].name == "Feedforward/Delta fast RNN"
    assert str(ZOO["delta_net"]) == "Feedforward/Delta fast Linear Net"
    assert Composition("lstm", "sum", "mlp(depth=3)").name == "LSTM/Sum fast Deep MLP"


@pytest.mark.parametrize(("slow", "rule", "fast", "phi"), list(itertools.product(SLOW, RULES, FAST, MAPS)))
def test_every_combination_goes_to_strings_and_back(slow, rule, fast, phi):
    combination = Composition(slow, rule, fast, phi)
    assert combination.specification() == {"slow": slow, "rule": rule, "fast": fast, "phi": phi}
    assert Composition(**combination.specification()) == combination


def test_fields_of_a_fast_net_go_to_strings_and_back():
    combination = Composition(fast=MLP(depth=3, inner=2))
    assert combination.specification()["fast"] == "mlp(depth=3, inner=2)"
    assert Composition(**combination.specification()) == combination
    assert Composition(fast=RNN).fast == RNN()


def test_slow_net_is_as_wide_as_the_fast_net_asks():
    d = 16
    assert ZOO["linear_transformer"].outputs(d) == 3 * d
    assert ZOO["delta_net"].outputs(d) == 3 * d + 1
    assert ZOO["delta_rnn"].outputs(d) == 5 * d + 2
    assert ZOO["delta_delta_net"].outputs(d) == 5 * d + 2  # the appendix: d x (5d + 2)
    assert ZOO["delta_lstm"].outputs(d) == 15 * d + 6


def test_authors_delta_mlp_leaves_half_of_its_keys_and_values_unread():
    d, authors = 16, Composition(fast=AuthorsMLP(blocks=2))
    keys_and_values = authors.live_outputs(d) - d - 4
    assert authors.outputs(d) - authors.live_outputs(d) == keys_and_values
    assert Composition(fast="residual_mlp(blocks=2)").outputs(d) == authors.live_outputs(d)


def test_layout_of_the_delta_rnn_is_the_authors():
    layout = [(matrix, part) for matrix, part, _ in ZOO["delta_rnn"].layout(4)]
    assert layout == [
        *(("W", part) for part in ("query", "key", "value")),
        *(("R", part) for part in ("key", "value")),
        ("W", "beta"),
        ("R", "beta"),
    ]


def test_names_ignore_case_and_hyphens():
    assert composition("Delta-RNN") is ZOO["delta_rnn"]
    assert composition(ZOO["rdn"]) is ZOO["rdn"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slow": "recurent"}, "unknown slow net 'recurent'; did you mean 'recurrent'?"),
        ({"rule": "dleta"}, "unknown update rule 'dleta'; did you mean 'delta'?"),
        ({"fast": "rn"}, "unknown fast net 'rn'; did you mean 'rnn'?"),
        ({"phi": "soft_max"}, "unknown feature map 'soft_max'; did you mean 'softmax'?"),
        ({"fast": "mlp(deph=3)"}, "did you mean 'depth'?"),
    ],
)
def test_unknown_part_gets_a_suggestion(arguments, message):
    with pytest.raises(UnknownName) as error:
        Composition(**arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "fast",
    [
        "mlp(3)",
        "mlp(depth=3",
        "mlp(depth=__import__('os'))",
        "mlp(depth='3')",
        "mlp(depth=-1)",
        "mlp(depth=0)",
        "mlp(depth=3)(inner=2)",
        "mlp(depth=3, depth=2)",
    ],
)
def test_fields_are_literals_of_the_right_type(fast):
    with pytest.raises(InvalidInput, match=r"(?i)mlp"):
        Composition(fast=fast)


@pytest.mark.parametrize("part", [{"fast": 3}, {"slow": None}, {"rule": delta_rule}, {"phi": 3}, {"fast": Delta()}])
def test_an_object_that_is_no_such_part_is_named(part):
    with pytest.raises(InvalidInput, match=r"is no (fast net|slow net|update rule|feature map); give an object"):
        Composition(**part)


def test_a_feature_map_has_no_fields():
    with pytest.raises(InvalidInput, match="takes no fields; try 'softmax'"):
        Composition(phi="softmax(temperature=2)")


def test_a_fast_net_is_no_model():
    with pytest.raises(UnknownName, match="is a fast net and no model"):
        composition("rnn")
    with pytest.raises(InvalidInput, match="saw 3"):
        composition(3)


def test_unknown_model_gets_a_suggestion():
    with pytest.raises(UnknownName, match="unknown model 'delta_rn'; did you mean 'delta_rnn'"):
        composition("delta_rn")


def test_a_fast_net_without_a_name_cannot_be_written_down():
    class Mine(Linear):
        pass

    with pytest.raises(InvalidInput, match="has no name"):
        Composition(fast=Mine()).specification()
