"""The scheduler, with workers and a clock of its own."""

import signal

import pytest

from rfwp.reproduce.run import describe_outcome
from rfwp.reproduce.schedule import Budget, Scheduler
from tests.reproduce.jobs import job


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Fake:
    """Takes some seconds and leaves with a code; told to stop, it saves for a while."""

    def __init__(self, clock, seconds, code=0, saving=1.0):
        self.clock, self.end, self.code, self.saving = clock, clock() + seconds, code, saving
        self.killed = False

    def poll(self):
        return self.code if self.clock() >= self.end else None

    def terminate(self):
        self.end, self.code = self.clock() + self.saving, 143

    def kill(self):
        self.end, self.code, self.killed = self.clock(), -9, True

    def last_lines(self):
        return ["it went wrong"]


class Room:
    """A scheduler whose jobs take given seconds, and what it did."""

    def __init__(self, seconds, expected=None, codes=(), budget=float("inf"), at_once=1, saving=1.0, wish=lambda now: 0):
        self.clock, self.said, self.started, self.workers = Clock(), [], [], {}
        self.jobs = [job(seed=seed) for seed in seconds]
        expected = expected or seconds
        self.most = 0

        def start(job):
            self.started.append((job.seed, round(self.clock() - 1000)))
            self.workers[job.seed] = Fake(self.clock, seconds[job.seed], dict(codes).get(job.seed, 0), saving)
            self.most = max(self.most, sum(w.poll() is None for w in self.workers.values()))
            return self.workers[job.seed]

        self.scheduler = Scheduler(
            start=start,
            costs=lambda: lambda job: expected[job.seed],
            at_once=at_once,
            budget=Budget(budget),
            say=self.said.append,
            wish=lambda: wish(self.clock() - 1000),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def run(self):
        outcome = self.scheduler.run(self.jobs)
        assert all(worker.poll() is not None for worker in self.workers.values())
        return outcome


def seeds(jobs):
    return sorted(job.seed for job in jobs)


def test_the_shortest_goes_first_and_never_more_than_asked_for_at_a_time():
    room = Room({1: 50, 2: 20, 3: 30, 4: 10}, at_once=2)
    assert seeds(room.run().done) == [1, 2, 3, 4]
    assert [seed for seed, _ in room.started] == [4, 2, 3, 1]
    assert room.most == 2


def test_what_does_not_fit_uses_what_is_left_and_the_command_leaves_before_its_budget_ends():
    room = Room({1: 100, 2: 100, 3: 250}, budget=300)
    outcome = room.run()
    assert (seeds(outcome.done), seeds(outcome.stopped)) == ([1, 2], [3])
    assert 270 <= room.clock() - 1000 < 275


def test_with_little_time_left_nothing_is_begun_that_does_not_fit():
    room = Room({1: 100, 2: 150, 3: 250}, budget=300)
    outcome = room.run()
    assert (seeds(outcome.done), seeds(outcome.waiting)) == ([1, 2], [3])
    assert room.clock() - 1000 < 252
    assert not any("nothing is begun" in line for line in room.said)


def test_a_budget_for_nothing_says_what_it_lacks():
    room = Room({1: 100, 2: 90}, budget=40)
    assert seeds(room.run().waiting) == [1, 2]
    assert room.said == ["nothing is begun: listops-10/rdn seed 2 needs 1 min 30 s, and 36 s are left"]


def test_what_takes_longer_than_expected_is_stopped_and_saved_in_time():
    room = Room({1: 1000}, expected={1: 100}, budget=300, saving=10.0)
    outcome = room.run()
    assert seeds(outcome.stopped) == [1]
    assert not room.workers[1].killed
    assert 270 <= room.clock() - 1000 < 285


def test_what_does_not_stop_is_killed_before_the_budget_ends():
    room = Room({1: 1000}, expected={1: 100}, budget=300, saving=500.0)
    assert seeds(room.run().stopped) == [1]
    assert room.workers[1].killed
    assert room.clock() - 1000 < 300


def test_what_never_fits_is_begun_to_be_continued():
    room = Room({1: 1000, 2: 220, 3: 1000}, budget=300, at_once=1)
    outcome = room.run()
    # after the one that fits, too little is left to begin a long one
    assert (seeds(outcome.done), seeds(outcome.waiting)) == ([2], [1, 3])
    room = Room({1: 1000, 3: 2000}, budget=300, at_once=2)
    assert seeds(room.run().stopped) == [1, 3]


def test_a_failed_run_is_told_with_its_last_lines_and_the_others_go_on():
    room = Room({1: 10, 2: 20, 3: 30}, codes={1: 1, 2: -9})
    outcome = room.run()
    assert seeds(outcome.done) == [3]
    # killed, but not by us: out of memory, perhaps
    assert seeds(outcome.failed) == [1, 2]
    text = "\n".join(describe_outcome(outcome))
    assert "1 done, 0 stopped, 0 waiting, 2 failed" in text
    assert "listops-10/rdn seed 1: failed; its last lines:\n    it went wrong" in text


def test_a_signal_stops_like_the_end_of_the_budget():
    room = Room({1: 100, 2: 100, 3: 100}, at_once=2, wish=lambda now: signal.SIGINT if now > 50 else 0)
    outcome = room.run()
    assert (seeds(outcome.stopped), seeds(outcome.waiting)) == ([1, 2], [3])
    assert room.clock() - 1000 < 55


def test_leaving_at_once_kills_the_workers():
    def twice(now):
        if now > 50:
            raise KeyboardInterrupt
        return 0

    room = Room({1: 100}, wish=twice)
    with pytest.raises(KeyboardInterrupt):
        room.run()
    assert room.workers[1].killed


def test_long_runs_are_told_about_every_minute():
    room = Room({1: 150})
    room.run()
    assert sum(text.startswith("running: listops-10/rdn seed 1 0%") for text in room.said) == 2


def test_time_that_is_over_before_it_begins_counts():
    room = Room({1: 100}, budget=300)
    room.scheduler.elapsed = 220.0
    assert seeds(room.run().waiting) == [1]
