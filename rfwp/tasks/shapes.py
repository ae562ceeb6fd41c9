"""Random nested lists of an exact depth, without their operators and digits.

The authors draw lists until one has the wanted depth: a list has two to five arguments, each number equally likely, and
an argument is again a list with probability 1/4. At depth 15 nearly all draws are thrown away. `Shapes` draws from the
same distribution in one go. With n levels of lists still allowed,

    P_n = P(an argument has at most n levels) = 3/4 + 1/4 E_k[P_{n-1}^k],   P_0 = 3/4,   k uniform from 2 to 5,

and a list that has to reach the bottom, n levels below, must hold at least one argument that does. With q = P_{n-1} and
l = P_{n-2}, all arguments allowed n - 1 levels:

    P(at least one of r arguments reaches it)  = q^r - l^r = (q - l) S_r,   S_r = sum_j q^j l^{r-1-j}
    P(the first of r reaches it | one does)    = (q - l) q^{r-1} / ((q - l) S_r) = q^{r-1} / S_r

The small difference q - l drops out everywhere, so deep lists lose no precision.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate

OPEN, DIGIT, CLOSE = range(3)
ARGUMENTS = (2, 3, 4, 5)
LEAF = 0.75
"""The probability that an argument is a digit."""
LEVELS = 20
"""The authors' last level, where all arguments are digits for certain; the outermost list is on level 1."""

# what a node with n levels below it has to do
_REACH, _FREE, _SHORT = range(3)
_CLOSE = (-1, _FREE)


class Shapes:
    """Lists with exactly `depth` nested operators.

    A list of depth 19 fills all levels of the authors. Deeper ones do not exist there; here they follow the same rule
    without the last level.
    """

    def __init__(self, depth: int, levels: int = LEVELS) -> None:
        self.depth = depth
        # by duty and the levels n left: P(at most n levels), P(fewer than n levels)
        self._probability = {_FREE: [1.0 if depth + 1 == levels else LEAF], _SHORT: [0.0]}
        # by duty and n: the distribution of the number of arguments; by n and r: P(the first of r reaches the bottom)
        self._arguments: dict[int, list[list[float]]] = {_REACH: [[]], _FREE: [[]], _SHORT: [[]]}
        self._first: list[list[float]] = [[]]
        for n in range(1, depth + 1):
            q, l = self._probability[_FREE][-1], self._probability[_SHORT][-1]
            self._first.append([0.0] + [_power(q, r - 1) / _paths(q, l, r) for r in range(1, max(ARGUMENTS) + 1)])
            self._arguments[_REACH].append(_cumulative([_paths(q, l, k) for k in ARGUMENTS]))
            self._arguments[_FREE].append(_cumulative([_power(q, k) for k in ARGUMENTS]))
            # with one level left, a short argument is a digit and never asks
            self._arguments[_SHORT].append(_cumulative([_power(l, k) for k in ARGUMENTS]) if n > 1 else [])
            self._probability[_FREE].append(LEAF + (1 - LEAF) * _mean_power(q))
            self._probability[_SHORT].append(LEAF + (1 - LEAF) * _mean_power(l))

    def draw(self, random: Callable[[], float]) -> list[int]:
        """One list as OPEN, DIGIT and CLOSE."""
        parts = []
        waiting = [(self.depth, _REACH)]
        while waiting:
            n, duty = waiting.pop()
            if n < 0:
                parts.append(CLOSE)
            elif n == 0 or (duty != _REACH and random() * self._probability[duty][n] < LEAF):
                parts.append(DIGIT)
            else:
                parts.append(OPEN)
                arguments = self._draw_arguments(n, duty, random)
                waiting.append(_CLOSE)
                waiting += arguments[::-1]
        return parts

    def _draw_arguments(self, n: int, duty: int, random: Callable[[], float]) -> list[tuple[int, int]]:
        """How many arguments a list with n levels has, and the duty of each."""
        count = ARGUMENTS[bisect_right(self._arguments[duty][n], random())]
        if duty != _REACH:
            return [(n - 1, duty)] * count
        # before the first argument that reaches the bottom all are shorter; after it none has a duty
        first = next(i for i in range(count) if random() < self._first[n][count - i])
        return [(n - 1, _SHORT)] * first + [(n - 1, _REACH)] + [(n - 1, _FREE)] * (count - first - 1)


# plain products and additions only, for the same bits everywhere: pow() depends on the machine, sum() on Python's version
def _power(x: float, k: int) -> float:
    return x * _power(x, k - 1) if k else 1.0


def _paths(q: float, l: float, r: int) -> float:
    """S_r = sum_j q^j l^{r-1-j}"""
    return _total(_power(q, j) * _power(l, r - 1 - j) for j in range(r))


def _mean_power(x: float) -> float:
    return _total(_power(x, k) for k in ARGUMENTS) / len(ARGUMENTS)


def _total(terms: Iterable[float]) -> float:
    return list(accumulate(terms))[-1]


def _cumulative(weights: list[float]) -> list[float]:
    """The inner boundaries of a distribution: one fewer than it has values."""
    *inner, total = accumulate(weights)
    return [part / total for part in inner]
