"""Environments that fail are made anew, and training goes on; those that fail again and again stop it, with the cause."""

from collections.abc import Callable
from contextlib import suppress
from traceback import extract_tb

import numpy as np

from rfwp.errors import RFWPError
from rfwp.tasks.environments import Episode, Step, VectorEnvironment, answered

MOST = 3
"""Failures in a row that stop the training."""
QUIET = 100
"""Steps without a failure, after which the next one is the first in a row again."""


class EnvironmentFailed(RFWPError, RuntimeError):
    """The environments failed several times in a row; the last failure is the cause."""


class Restarting:
    """Environments that are made anew when they raise, or give rewards or observations that are no numbers.

    All N of them start new episodes then: to the agent it looks as if the old ones had ended without a reward.
    `say` gets a line for every failure; `failures` counts them.
    """

    def __init__(self, make: Callable[[], VectorEnvironment], say: Callable[[str], None]):
        self._make, self._say = make, say
        self._environment = make()
        self.n, self.shape = self._environment.n, self._environment.shape
        self.dtype, self.actions = self._environment.dtype, self._environment.actions
        self.failures = 0
        self._in_a_row, self._steps = 0, 0
        self._failed: Exception | None = None
        self._finished: list[Episode] = []

    def reset(self, seed: int) -> Step:
        self._seed = seed
        try:
            return _checked(self._environment.reset(seed))
        except Exception as error:
            return self._restart(error)

    def send(self, actions: np.ndarray) -> None:
        try:
            self._environment.send(actions)
        except Exception as error:
            # the answer to these actions, the first observation of new episodes, is given by `recv`
            self._failed = error

    def recv(self) -> Step:
        failed, self._failed = self._failed, None
        if failed is not None:
            return self._restart(failed)
        try:
            step = _checked(self._environment.recv())
        except Exception as error:
            return self._restart(error)
        self._steps += 1
        return step

    def finished(self) -> list[Episode]:
        episodes, self._finished = self._finished + self._environment.finished(), []
        return episodes

    @property
    def rows(self) -> np.ndarray:
        """Of those that answered last, see `answered`."""
        return answered(self._environment)

    def close(self) -> None:
        self._environment.close()

    def _restart(self, error: Exception) -> Step:
        """New episodes of new environments, with another seed."""
        while True:
            self.failures += 1
            self._in_a_row = 1 if self._steps >= QUIET else self._in_a_row + 1
            self._steps = 0
            cause = describe(error)
            if self._in_a_row >= MOST:
                many = f"the environments failed {MOST} times in a row"
                raise EnvironmentFailed(f"{many}, the last time with {cause}{line_of(error)}") from error
            self._say(f"{self.n} environments failed with {cause}; they are started anew (failure {self.failures})")
            # what is broken may not even close; all that matters are the new ones
            with suppress(Exception):
                self._finished += self._environment.finished()
                self._environment.close()
            try:
                self._environment = self._make()
                return _checked(self._environment.reset(self._seed + 1_000_003 * self.failures))
            except Exception as again:
                error = again


def describe(error: Exception) -> str:
    """`ValueError: what it says (in the environment pong)`, in one line."""
    text = " ".join(str(error).split())
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {text}{notes}" if text else f"{type(error).__name__}{notes}"


def line_of(error: Exception) -> str:
    """`, in FILE:LINE`: where it was raised, for whoever wrote the environment; empty for what was found here."""
    *_, last = extract_tb(error.__traceback__)
    return "" if last.filename == __file__ else f", in {last.filename}:{last.lineno}"


def not_finite(step: Step) -> str:
    """What in it is no number; empty if nothing."""
    if not np.isfinite(step.reward).all():
        return "a reward that is no finite number"
    if step.observation.dtype != np.uint8 and not np.isfinite(step.observation).all():
        return "an observation that is no finite number"
    return ""


def _checked(step: Step) -> Step:
    if found := not_finite(step):
        raise ArithmeticError(found)
    return step
