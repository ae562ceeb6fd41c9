"""What a person sees of a run."""

import io
import os
import sys

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


def test_on_a_terminal_one_line_lives_and_goes(tmp_path):
    log = ConsoleLog(console(True), tensorboard=False)
    trainer(tmp_path, log=log).run()
    text = log.console.file.getvalue()
    assert "epoch 3/3  step 3/3  loss " in text
    assert "epoch 3/3: loss" not in text
    # the cursor is back
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("output", [broken_pipe, lambda: open("/dev/full", "w")])  # noqa: SIM115
@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_goes_on_when_nobody_reads_any_more(tmp_path, output, terminal):
    with output() as file:
        log = ConsoleLog(Screen(file=file, force_terminal=terminal))
        result = trainer(tmp_path, log=log).run()
        log.say("unheard")
    assert result.stopped is None
    assert result.epochs == 3
    assert (tmp_path / "last").exists()


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
