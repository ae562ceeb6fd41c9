"""Sequential ListOps: the language, and that its lists are those of plain rejection sampling."""

import hashlib
import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch

from rfwp.config import ListOpsConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.tasks import ListOps
from rfwp.tasks.shapes import CLOSE, DIGIT, OPEN, Shapes


def evaluate(text: str) -> tuple[int, int]:
    """Value and depth, sharing no code with rfwp: the list becomes a Python expression."""
    functions = {
        "MIN": lambda *a: (min(v for v, _ in a), 1 + max(d for _, d in a)),
        "MAX": lambda *a: (max(v for v, _ in a), 1 + max(d for _, d in a)),
        "FIRST": lambda *a: (a[0][0], 1 + max(d for _, d in a)),
    }
    python = {"[MIN": "MIN(", "[MAX": "MAX(", "[FIRST": "FIRST(", "]": "),", **{str(i): f"({i}, 0)," for i in range(10)}}
    return eval("".join(python[token] for token in text.split()), functions)[0]


def small(**fields) -> ListOps:
    return ListOps(ListOpsConfig(**{"train": 200, "valid": 20, "test": 20, **fields}))


def lists(task: ListOps, name: str = "train") -> list[tuple[str, int]]:
    split = task.generate(name)
    rows = zip(split.tokens, split.targets, split.lengths.tolist(), strict=True)
    return [(" ".join(task.source.decode(x[:n])), int(y[n - 1])) for x, y, n in rows]


def plain_rejection(depth: int, levels: int, draw) -> tuple[int, ...]:
    """The authors' process: whole lists are drawn until one has the depth."""

    def node(level: int) -> tuple[list[int], int]:
        if level > 1 and (level >= levels or draw() >= 0.25):
            return [DIGIT], 0
        parts, deepest = [OPEN], 0
        for _ in range(2 + int(draw() * 4)):
            inside, below = node(level + 1)
            parts += inside
            deepest = max(deepest, below)
        return [*parts, CLOSE], deepest + 1

    while True:
        parts, found = node(1)
        if found == depth:
            return tuple(parts)


def length_distribution(depth: int, longest: int) -> np.ndarray:
    """P(length) of the rejection process, exactly, by generating functions, far from the last level."""

    def power(p, k):
        return np.array([1.0]) if k == 0 else np.convolve(power(p, k - 1), p)[:longest]

    def around(p):
        return np.concatenate([[0.0, 0.0], p])[:longest]

    digit, fewer, at_most = np.zeros(longest), np.zeros(longest), np.zeros(longest)
    digit[1] = at_most[1] = 0.75
    for _ in range(depth - 1):
        fewer = at_most
        at_most = digit + around(sum(power(at_most, k) for k in (2, 3, 4, 5))) / 16
    exactly = around(sum(power(at_most, k) - power(fewer, k) for k in (2, 3, 4, 5)))
    return exactly / exactly.sum()


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_examples_of_the_paper():
    task = small()
    text = "[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1] ]"
    assert task.truth(text) == [""] * 13 + ["6"]
    assert task.source.decode(task.encode(text)) == text.replace("1]", "1 ]").split()


def test_vocabularies_are_fixed():
    task = small(depth=1)
    assert list(task.source.symbols) == ["[MIN", "[MAX", "[FIRST", "]", *"0123456789"]
    assert list(task.target.symbols) == list("0123456789")


@pytest.mark.parametrize("depth", [1, 2, 10, 19, 25])
def test_values_and_depths_are_what_an_independent_evaluator_says(depth):
    task = small(depth=depth, train=60)
    for text, target in lists(task):
        assert evaluate(text) == (target, depth)
        assert task.truth(text)[-1] == str(target)


def test_only_the_last_token_has_a_target():
    split = small(depth=3).generate("train")
    last = torch.arange(split.tokens.shape[1]) == split.lengths[:, None] - 1
    assert torch.equal(split.targets >= 0, last)
    assert (split.tokens.dtype, split.targets.dtype, split.lengths.dtype) == (torch.uint8, torch.int8, torch.int32)


@pytest.mark.parametrize(("depth", "levels"), [(1, 20), (2, 20), (2, 3), (3, 20), (3, 4)])
def test_shapes_have_the_distribution_of_plain_rejection(depth, levels):
    """Also where the depth fills all levels, so that the innermost arguments are digits for certain."""
    n = 6000
    shapes = Shapes(depth, levels)
    ours = random.Random(1).random
    theirs = random.Random(2).random
    # whole lists while they are small, else their lengths and argument numbers
    key = (lambda parts: parts[:12]) if depth < 3 else (lambda parts: (len(parts) // 3, parts[:5]))
    a = Counter(key(tuple(shapes.draw(ours))) for _ in range(n))
    b = Counter(key(plain_rejection(depth, levels, theirs)) for _ in range(n))
    cells = [cell for cell in a | b if a[cell] + b[cell] >= 20]
    rest = [sum(count[cell] for cell in count if cell not in cells) for count in (a, b)]
    x = np.array([*(a[cell] for cell in cells), rest[0] + 1])
    y = np.array([*(b[cell] for cell in cells), rest[1] + 1])
    # four standard deviations
    freedom = len(cells)
    assert float(((x - y) ** 2 / (x + y)).sum()) < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("depth", "mean", "shortest", "longest"), [(10, 97.8, 37, 364), (15, 187.1, 61, 676)])
def test_lengths_are_those_of_the_paper(depth, mean, shortest, longest):
    lengths = small(depth=depth, train=2500).generate("train").lengths.numpy()
    exact = length_distribution(depth, 1200)
    assert abs(exact @ np.arange(1200) - mean) < 0.1
    assert abs(lengths.mean() - mean) < 4 * lengths.std() / len(lengths) ** 0.5
    # of ten thousand lists, few lie outside the printed range
    assert 1e4 * (exact[:shortest].sum() + exact[longest + 1 :].sum()) < 2
    edges = [int(np.searchsorted(exact.cumsum(), share)) for share in np.linspace(0, 1, 16)[1:-1]]
    observed = np.histogram(lengths, [0, *edges, 1200])[0]
    expected = np.array([exact[a:b].sum() for a, b in itertools.pairwise([0, *edges, 1200])]) * len(lengths)
    assert chi_square(observed, expected) < 14 + 4 * 28**0.5


def test_operators_and_digits_are_uniform():
    symbols = Counter(" ".join(text for text, _ in lists(small(depth=10))).split())
    operators = np.array([symbols[name] for name in ("[MIN", "[MAX", "[FIRST")])
    digits = np.array([symbols[name] for name in "0123456789"])
    assert chi_square(operators, np.full(3, operators.mean())) < 2 + 4 * 4**0.5
    assert chi_square(digits, np.full(10, digits.mean())) < 9 + 4 * 18**0.5


def test_very_deep_lists_lose_no_precision():
    parts = Shapes(300).draw(random.Random(0).random)
    depths = list(itertools.accumulate({OPEN: 1, DIGIT: 0, CLOSE: -1}[part] for part in parts))
    assert max(depths) == 300
    assert depths[-1] == 0


def test_splits_do_not_depend_on_each_other_and_longer_ones_continue_shorter_ones():
    few, many = small(train=5), small(train=9)
    assert lists(few, "valid") == lists(many, "valid")
    assert lists(few) == lists(many)[:5]
    assert lists(small(data_seed=43)) != lists(small())


def test_data_of_a_seed_never_change():
    """If this fails on purpose, raise the task's version, so that old cache files are left alone."""
    digest = hashlib.sha256(repr(lists(small(train=30, depth=15))).encode()).hexdigest()
    assert digest[:16] == "4d835c5edc0d2a4b"


def test_counts():
    task = small()
    targets = torch.tensor([[-1, 5, -1], [-1, -1, 6], [-1, -1, -1]], dtype=torch.int8)
    predictions = torch.tensor([[0, 5, 0], [0, 6, 3], [1, 1, 1]])
    assert {name: count.tolist() for name, count in task.count(predictions, targets).items()} == {task.score: [1, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 2 q ]", "character 8: unknown token 'q'; known: \\[MIN"),
        ("[SUM 2 3 ]", "character 1: unknown token '\\[SUM'"),
        ("[MAX 23 ]", "character 6: unknown token '23'"),
        ("", "the text is empty"),
        ("[MAX 2 [MIN 3 4", "the list is unbalanced: 2 closing brackets missing, the first for '\\[MIN' at character 8"),
        ("[MAX 2 [MIN 3 4 ]", "the list is unbalanced: 1 closing bracket missing, the first for '\\[MAX' at character 1"),
        ("[MAX 2 3 ] ]", "character 12: ']' comes after the end of the list; it is unbalanced"),
        ("[MAX 2 3 ] [MIN 1 2 ]", "character 12: '\\[MIN' comes after the end of the list; give one list at a time"),
        ("3 4", "character 1: a list starts with \\[MIN, \\[MAX, \\[FIRST, not with '3'"),
        ("[MAX 2 [MIN ] ]", "character 8: \\[MIN has no arguments"),
    ],
)
def test_slips_in_a_list_are_named_with_their_place(text, message):
    for ask in (small().encode, small().truth):
        with pytest.raises((InvalidInput, UnknownName), match=f"^{message}"):
            ask(text)


def test_depth_must_be_positive():
    with pytest.raises(InvalidInput, match="depth=0 does not fit; use a whole number, at least 1"):
        small(depth=0)
