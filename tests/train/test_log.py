"""What a person sees of a run."""

import errno
import io
import itertools
import os
import shutil
import sys
import threading
import time

import pytest
from rich.console import Console

from rfwp.train.log import ConsoleLog, Moment, Screen, describe, duration
from tests.train.tiny import tiny_config, trainer


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def test_without_a_terminal_an_epoch_is_one_line(tmp_path):
    log = ConsoleLog(console(False), tensorboard=False)
    trainer(tmp_path, log=log).run()
    lines = log.console.file.getvalue().splitlines()
    assert lines[0] == f"tiny, seed 1 (661 parameters, cpu, fp32) -> {tmp_path}"
    assert [line.split(":")[0] for line in lines[1:]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert "token accuracy" in lines[1]
    assert lines[1].endswith(" s left")


def test_without_a_terminal_a_long_epoch_says_how_far_it_is(tmp_path, monkeypatch):
    clock = itertools.count(0, 90)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    log = ConsoleLog(console(False), tensorboard=False)
    trainer(tmp_path, tiny_config(epochs=1), log=log).run()
    lines = log.console.file.getvalue().splitlines()
    assert [line.split("  loss")[0] for line in lines[1:-1]] == [f"epoch 1/1  step {n}/3" for n in (1, 2, 3)]
    assert lines[-1].startswith("epoch 1/1: loss")


def test_without_a_terminal_lines_are_minutes_apart(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = ConsoleLog(console(False), tensorboard=False)
    for now in (60.0, 130.0, 140.0, 240.0, 260.0):
        log.moment(Moment(2, 200, int(now), 157, 0.5, 1.0, None, None, None))
    assert [line.split("  ")[1] for line in log.console.file.getvalue().splitlines()] == ["step 130/157", "step 260/157"]


def test_on_a_terminal_one_line_lives_and_goes(tmp_path):
    log = ConsoleLog(console(True), tensorboard=False)
    trainer(tmp_path, log=log).run()
    text = log.console.file.getvalue()
    assert "epoch 3/3  step 3/3  loss " in text
    assert "epoch 3/3: loss" not in text
    # the cursor is back
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


class Breaking(io.TextIOWrapper):
    """A file that takes some lines and then no more, as a pipe whose reader has gone."""

    def __init__(self, error, after):
        super().__init__(open(os.devnull, "wb"), write_through=True)  # noqa: SIM115
        self.error, self.left = error, after

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(text)

    def isatty(self):
        return True


@pytest.mark.parametrize("error", [errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("after", range(5))
def test_a_run_goes_on_when_nobody_reads_any_more(tmp_path, error, terminal, after):
    with Breaking(error, after) as file:
        log = ConsoleLog(Screen(file=file, force_terminal=terminal))
        result = trainer(tmp_path, log=log).run()
        log.say("unheard")
        assert file.left < 0
    assert (result.stopped, result.epochs) == (None, 3)
    assert (tmp_path / "last").exists()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_line_that_cannot_be_shown_is_left_out(after):
    with Breaking(errno.EPIPE, after) as file:
        before = sys.stderr
        log = ConsoleLog(Screen(file=file, force_terminal=True), tensorboard=False)
        for done in range(3):
            log.working("testing", done, 3)
        log.end()
        assert sys.stderr is before
        assert file.left < 0


def test_tensorboard_gets_every_epoch_once_also_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Lost(Exception):
        pass

    class Losing(ConsoleLog):
        def epoch(self, record, moment):
            super().epoch(record, moment)
            if record["epoch"] == 2:
                raise Lost

    with pytest.raises(Lost):
        trainer(tmp_path, log=Losing(console(False))).run()
    trainer(tmp_path, log=ConsoleLog(console(False))).run()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert "valid/token accuracy" in events.Tags()["scalars"]


def test_a_run_outlives_the_folder_of_its_curves(tmp_path):
    class Removing(ConsoleLog):
        def epoch(self, record, moment):
            if record["epoch"] == 2:
                shutil.rmtree(tmp_path / "tensorboard")
            super().epoch(record, moment)

    log, hook = Removing(console(False)), threading.excepthook
    result = trainer(tmp_path, log=log).run()
    assert (result.stopped, result.epochs) == (None, 3)
    assert log.console.file.getvalue().count("no curves for TensorBoard from here on (No such file or directory)") == 1
    assert threading.excepthook is hook


def test_a_run_needs_no_place_for_its_curves(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    log = ConsoleLog(console(False))
    assert trainer(tmp_path, log=log).run().epochs == 3
    assert log.console.file.getvalue().count("no curves for TensorBoard from here on") == 1


def test_a_missing_tensorboard_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = ConsoleLog(console(False))
    for name in "ab":
        trainer(tmp_path / name, tiny_config(epochs=1), log=log).run()
    assert log.console.file.getvalue().count('pip install "rfwp[train]"') == 1


def test_a_moment_is_one_line():
    moment = Moment(2, 200, 40, 157, 0.51234, 1_234_567.0, 3725.0, 0.5, 0.625)
    assert describe(moment) == (
        "epoch 2/200  step 40/157  loss 0.5123  valid 50.00% (best 62.50%)  1,234,567 tokens/s  1 h 02 min left"
    )
    assert [duration(s) for s in (8, 200, 3725)] == ["8 s", "3 min 20 s", "1 h 02 min"]
