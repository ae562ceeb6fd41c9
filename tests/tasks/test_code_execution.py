"""Code execution: the language, its two semantics and the statistics of its programs."""

import hashlib
import itertools
from collections import Counter

import pytest
import torch

from rfwp.config import CodeExecutionConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.tasks import CodeExecution
from rfwp.tasks.code_execution import Writer

BOTH = pytest.mark.parametrize("semantics", ["authors", "true"])


def interpret(text: str, semantics: str) -> tuple[list[str], list[int]]:
    """Sharing no code with rfwp: each statement becomes Python, which runs it. Returns the targets and all values on the way."""
    variables: dict[str, int] = {}
    targets, seen = [], []
    for statement in text.split(";")[:-1]:
        condition, _, basic = statement.strip().rpartition(":")
        holds = eval(condition.removeprefix("if"), {}, variables) if condition else True
        printed = "_"
        if basic.split()[0] == "print":
            printed = str(variables[basic.split()[1]]) if holds else "_"
        elif holds and "=" in basic:
            name = basic.split()[0]
            if semantics == "true" or not condition or name not in variables:
                exec(basic.strip(), {}, variables)
        elif holds:
            exec(basic.replace("++", "+= 1").replace("--", "-= 1").strip(), {}, variables)
        seen += variables.values()
        targets += ["_"] * len(statement.split()) + [printed]
    return targets, seen


def programs(task: CodeExecution, name: str = "train") -> list[tuple[str, list[str]]]:
    split = task.generate(name)
    rows = zip(split.tokens, split.targets, split.lengths.tolist(), strict=True)
    return [(" ".join(task.source.decode(x[:n])), task.target.decode(y[:n])) for x, y, n in rows]


def small(**fields) -> CodeExecution:
    return CodeExecution(CodeExecutionConfig(**{"train": 150, "valid": 20, "test": 20, **fields}))


def test_example_of_the_paper():
    text = "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;"
    task = small()
    assert task.truth(text) == ["_"] * 21 + ["4"]
    assert task.source.decode(task.encode(text)) == text.split()


@pytest.mark.parametrize("variables", [1, 2, 3, 4, 5])
def test_vocabularies_are_fixed(variables):
    task = small(variables=variables, train=1)
    order = ["=", "++", "--", ";", "print", "if", "<", ">", ":", *"0123456789", *"xyzab"]
    assert list(task.source.symbols) == order[: 19 + variables]
    assert list(task.target.symbols) == ["_", *map(str, range(-8, 17))]


@BOTH
@pytest.mark.parametrize("variables", [1, 3, 5])
def test_targets_are_what_an_independent_interpreter_says(semantics, variables):
    task = small(semantics=semantics, variables=variables)
    values = set()
    for text, targets in programs(task):
        expected, seen = interpret(text, semantics)
        assert targets == expected == task.truth(text)
        values.update(seen)
    assert min(values) >= -8
    assert max(values) <= 16


def test_most_programs_of_the_authors_differ_from_true_semantics():
    def differs(text: str, targets: list[str]) -> bool:
        try:
            return interpret(text, "true")[0] != targets
        except (KeyError, NameError):
            # a condition that gave a variable its first value no longer holds
            return True

    data = programs(small(train=400))
    share = sum(differs(text, targets) for text, targets in data) / len(data)
    assert 0.76 < share < 0.88


def test_semantics_of_a_true_conditional_assignment():
    overwrites = "x = 3 ; if x > 2 : x = 9 ; print x ;"
    assert small(semantics="authors").truth(overwrites)[-1] == "3"
    assert small(semantics="true").truth(overwrites)[-1] == "9"
    is_new = "x = 3 ; if x > 2 : y = 9 ; print y ;"
    assert small(semantics="authors").truth(is_new)[-1] == small(semantics="true").truth(is_new)[-1] == "9"


def test_steps_turn_round_at_the_limits_even_where_they_are_not_executed():
    config = CodeExecutionConfig(variables=1, statements=12)
    nine, up, down = [0.0, 0.95], [0.3, 0.0, 0.0], [0.3, 0.0, 0.9]
    # if x < 0 : x ++ ; where x is 16
    false_up = [0.9, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0]
    draws = [*nine, *up * 7, *false_up, *up, *down, 0.0]
    writer = Writer(config, iter(draws).__next__)
    text = " ".join(writer.source)
    assert text == "x = 9 ; " + "x ++ ; " * 7 + "if x < 0 : x -- ; x -- ; x -- ; print x ;"
    assert writer.target[-1] == "14"


@pytest.mark.parametrize("variables", [3, 5])
def test_lengths_are_those_of_the_paper(variables):
    lengths = small(variables=variables, train=3000).generate("train").lengths.float()
    assert abs(lengths.mean() - 456) < 3
    assert 350 < lengths.min() < 410
    assert 505 < lengths.max() < 560


def test_statements_are_uniform():
    kinds, inner, digits, names, symbols = Counter(), Counter(), Counter(), Counter(), Counter()
    for text, _ in programs(small(train=400)):
        symbols.update(text.split())
        statements = text.split(";")[:-1]
        assert len(statements) == 100
        assert "=" in statements[0]
        assert "print" in statements[-1]
        for statement in statements[1:-1]:
            basic = statement.split(":")[-1]
            kind = "=" if "=" in basic else "print" if "print" in basic else "step"
            (inner if ":" in statement else kinds)[kind] += 1
            if kind == "=":
                names[basic.split()[0]] += 1
                digits[basic.split()[2]] += 1
    total = kinds.total() + inner.total()
    assert abs(symbols["++"] / (symbols["++"] + symbols["--"]) - 1 / 2) < 0.015
    assert abs(symbols["<"] / (symbols["<"] + symbols[">"]) - 1 / 2) < 0.02
    assert all(abs(kinds[kind] / total - 1 / 4) < 0.01 for kind in ("=", "print", "step"))
    assert all(abs(inner[kind] / inner.total() - 1 / 3) < 0.02 for kind in ("=", "print", "step"))
    assert len(digits) == 10
    assert all(abs(n / digits.total() - 1 / 10) < 0.012 for n in digits.values())
    assert len(names) == 3
    assert all(abs(n / names.total() - 1 / 3) < 0.02 for n in names.values())


def test_split_is_padded_and_small():
    split = small().generate("valid")
    assert (split.tokens.dtype, split.targets.dtype, split.lengths.dtype) == (torch.uint8, torch.int8, torch.int32)
    assert split.tokens.shape == split.targets.shape == (20, int(split.lengths.max()))
    padding = torch.arange(split.tokens.shape[1]) >= split.lengths[:, None]
    assert torch.equal(split.targets == -1, padding)
    assert (split.tokens[padding] == 0).all()


def test_splits_do_not_depend_on_each_other_and_longer_ones_continue_shorter_ones():
    few, many = small(train=5), small(train=9)
    assert programs(few, "valid") == programs(many, "valid")
    assert programs(few) == programs(many)[:5]
    texts = [{text for text, _ in programs(many, name)} for name in ("train", "valid", "test")]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(texts, 2))
    assert programs(small(data_seed=43)) != programs(small())


@pytest.mark.parametrize(("semantics", "digest"), [("authors", "c950ac58967053cb"), ("true", "8f48f31c66edc2f3")])
def test_data_of_a_seed_never_change(semantics, digest):
    """If this fails on purpose, raise the task's version, so that old cache files are left alone."""
    text = repr(programs(small(semantics=semantics, train=30)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_counts():
    task = small()
    targets = torch.tensor([[0, 5, 0], [0, 6, -1], [0, 0, 7], [-1, -1, -1]], dtype=torch.int8)
    predictions = torch.tensor([[0, 5, 0], [0, 6, 3], [1, 0, 8], [1, 1, 1]])
    counts = {name: count.tolist() for name, count in task.count(predictions, targets).items()}
    assert counts == {"sequence accuracy": [2, 3], "print accuracy": [2, 3], "no-op accuracy": [4, 5]}
    halves = [task.count(predictions[rows], targets[rows]) for rows in (slice(0, 1), slice(1, 4))]
    assert all((halves[0][name] + halves[1][name]).tolist() == count for name, count in counts.items())
    assert task.score in counts
    assert halves[0][task.score].dtype == torch.int64


def test_spaces_are_not_needed():
    task = small()
    expected = task.encode("x = 3 ; x ++ ; if x > 2 : y = 4 ; y -- ; print x ;")
    assert torch.equal(task.encode("x=3; x++;\nif x>2:y=4;y--;print x;"), expected)
    assert expected.dtype == torch.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 3 ; q ++ ;", "character 9: unknown token 'q'; known: = ++ -- ; print"),
        ("x = -3 ;", "character 5: unknown token '-'"),
        ("x = 12 ;", "character 5: unknown token '12'"),
        ("a = 3 ;", "character 1: unknown token 'a'"),
        (" ", "the text is empty"),
    ],
)
def test_unknown_tokens_are_named_with_their_place(text, message):
    with pytest.raises((UnknownName, InvalidInput), match=f"^{message.replace('+', '[+]')}") as error:
        small().encode(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ;", "character 5: expected a digit, saw ';'"),
        ("x = 3", "the program ends inside a statement, after '3'; expected ';'"),
        ("x = 3 ; x 4 ;", "character 11: expected '=' or '[+][+]' or '--', saw '4'"),
        ("x = 3 ; ;", "character 9: expected a statement, saw ';'"),
        ("x = 3 ; print 3 ;", "character 15: expected a variable, saw '3'"),
        ("x = 3 ; print print ;", "character 15: expected a variable, saw 'print'"),
        ("x = 3 ; if x = 3 : x ++ ;", "character 14: expected '<' or '>', saw '='"),
        ("x = 3 ; if x < 3 : if x > 1 : x ++ ;", "character 20: expected a statement, saw 'if'"),
        ("x = 3 ; if x < 3 :", "the program ends inside a statement, after ':'; expected a statement"),
        ("x = 3 ; print y ;", "character 15: y has no value yet; assign one first"),
        ("x = 3 ; y ++ ;", "character 9: y has no value yet"),
        ("if x < 3 : x = 3 ;", "character 4: x has no value yet"),
        ("x = 9 ;" + "x ++ ;" * 8 + "print x ;", "character 62: x is 17 here; print only -8 to 16"),
    ],
)
def test_slips_in_a_program_are_named_with_their_place(text, message):
    with pytest.raises(InvalidInput, match=f"^{message}") as error:
        small().truth(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variables": 6}, "variables=6 does not fit; use a whole number, from 1 to 5"),
        ({"variables": 0}, "variables=0"),
        ({"statements": 1}, "statements=1 does not fit; use a whole number, at least 2"),
        ({"train": 0}, "train=0"),
        ({"test": 2.5}, "test=2.5"),
        ({"data_seed": -1}, "data_seed=-1"),
        ({"semantics": "tru"}, "unknown semantics 'tru'; did you mean 'true'?"),
    ],
)
def test_configs_that_do_not_fit(fields, message):
    with pytest.raises((InvalidInput, UnknownName)) as error:
        small(**fields)
    assert message in str(error.value)
