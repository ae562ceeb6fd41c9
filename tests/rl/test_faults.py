from pathlib import Path

import numpy as np
import pytest

from rfwp.rl.faults import QUIET, EnvironmentFailed, Restarting
from tests.rl.fake import Noise

N = 3


class Failing(Noise):
    """Raises, or gives a number that is none, at its step `at`."""

    def __init__(self, at, how="raise"):
        super().__init__(N)
        self.at, self.how, self.closed = at, how, False

    def recv(self):
        step = super().recv()
        self.at -= 1
        if self.at == 0:
            if self.how == "raise":
                raise OSError("lost the emulator")
            getattr(step, self.how)[1] = np.nan
        return step

    def close(self):
        self.closed = True


def play(environment, steps):
    seen = [environment.reset(1)]
    for _ in range(steps):
        environment.send(np.zeros(N, int))
        seen.append(environment.recv())
    return seen


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raise", "OSError: lost the emulator"),
        ("reward", "ArithmeticError: a reward that is no finite number"),
        ("observation", "ArithmeticError: an observation that is no finite number"),
    ],
)
def test_environments_that_fail_are_started_anew_and_it_is_said_and_counted(how, cause):
    made, said = [Failing(4, how), Noise(N)], []
    bad = made[0]
    environment = Restarting(lambda: made.pop(0), said.append)
    seen = play(environment, 10)
    assert said == [f"3 environments failed with {cause}; they are started anew (failure 1)"]
    assert environment.failures == 1
    assert bad.closed
    # to the agent, episodes have ended without a reward
    assert seen[4].done.all()
    assert not seen[4].reward.any()
    assert all(np.isfinite(step.observation).all() and np.isfinite(step.reward).all() for step in seen)
    # the new environments have episodes of their own
    assert not np.array_equal(seen[4].observation, seen[0].observation)
    assert not made


def test_environments_that_do_not_even_close_are_started_anew_too():
    bad = Failing(2)
    bad.close = bad.finished = lambda: 1 / 0
    made = [bad, Noise(N)]
    environment = Restarting(lambda: made.pop(0), lambda line: None)
    play(environment, 5)
    assert environment.failures == 1


def test_three_failures_in_a_row_stop_with_the_cause_and_its_line():
    said = []
    environment = Restarting(lambda: Failing(2), said.append)
    with pytest.raises(EnvironmentFailed) as caught:
        play(environment, 10)
    said_last, _, place = str(caught.value).partition(", in ")
    assert said_last == "the environments failed 3 times in a row, the last time with OSError: lost the emulator"
    path, _, line = place.rpartition(":")
    assert path == __file__
    assert "lost the emulator" in Path(path).read_text().splitlines()[int(line) - 1]
    assert isinstance(caught.value.__cause__, OSError)
    assert len(said) == 2


def test_failures_far_apart_are_not_in_a_row():
    said = []
    environment = Restarting(lambda: Failing(QUIET + 1), said.append)
    play(environment, 5 * (QUIET + 1))
    assert environment.failures == len(said) == 5


def test_environments_that_cannot_be_made_again_stop_with_that_cause():
    made = [Failing(1)]

    def make():
        if not made:
            raise ValueError("no ROM")
        return made.pop()

    with pytest.raises(EnvironmentFailed, match="ValueError: no ROM"):
        play(Restarting(make, lambda line: None), 3)


def test_episodes_that_ended_before_the_failure_count():
    made = [Failing(60), Noise(N)]
    environment = Restarting(lambda: made.pop(0), lambda line: None)
    play(environment, 61)
    assert len(environment.finished()) > 5
    assert environment.finished() == []
