"""Numbers that are not finite: a run stops where they would be lost work, and leaves a step out where it can go on."""

import json
from typing import ClassVar

import pytest
import safetensors.torch
import torch

from rfwp.train import Diverged, Log
from rfwp.train.data import Data
from rfwp.train.evaluate import evaluate
from tests.train.tiny import Tiny, before_call, tiny_config, trainer, weights


def spoil(model, value):
    next(model.parameters()).data.fill_(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_its_step_and_batch(tmp_path, monkeypatch, value):
    run = trainer(tmp_path, save_minutes=0)
    monkeypatch.setattr(Data, "get", before_call(6, Data.get, lambda: spoil(run.model, value)))
    with pytest.raises(Diverged, match=r"in epoch 2, step 2; its batch is in .*nan-batch.safetensors.*lower train.lr"):
        run.run()
    batch = safetensors.torch.load_file(tmp_path / "nan-batch.safetensors")
    split = Tiny().split("train")
    assert torch.equal(split.tokens[batch["rows"]].long(), batch["tokens"][:, :12])
    assert torch.equal(split.targets[batch["rows"]].long(), batch["targets"][:, :12])
    state = json.loads((tmp_path / "last/state.json").read_text())
    assert state["progress"]["epoch"] == 1
    assert all(t.isfinite().all() for t in safetensors.torch.load(weights(tmp_path)).values())


def overflow_at(calls, monkeypatch):
    """Gradients whose norm is infinite at these of all steps."""
    clip, seen = torch.nn.utils.clip_grad_norm_, []

    def clipped(*arguments, **options):
        seen.append(clip(*arguments, **options))
        return seen[-1] * float("inf") if len(seen) in calls else seen[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)


def test_steps_whose_gradients_overflow_are_left_out_and_said(tmp_path, monkeypatch):
    class Warnings(Log):
        lines: ClassVar[list[str]] = []

        def warn(self, line):
            self.lines.append(line)

    overflow_at({2, 5, 6}, monkeypatch)
    assert trainer(tmp_path, tiny_config(clip=0.1), log=Warnings()).run().stopped is None
    assert Warnings.lines == [f"{n} of the last 3 steps were left out: their gradients overflowed" for n in (1, 2)]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("left_out") for line in lines[:3]] == [1, 2, None]


def test_a_run_whose_gradients_all_overflow_stops(tmp_path, monkeypatch):
    overflow_at({4, 5, 6}, monkeypatch)
    with pytest.raises(Diverged, match="the gradients of all steps overflowed up to the last in epoch 2, step 3"):
        trainer(tmp_path, tiny_config(clip=0.1)).run()


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    run = trainer(tmp_path, save_minutes=0)
    # after the last step of an epoch all losses were fine; only its update is not
    evaluation = before_call(2, evaluate, lambda: spoil(run.model, float("nan")))
    monkeypatch.setattr("rfwp.train.loop.evaluate", evaluation)
    with pytest.raises(Diverged, match="weights are not finite in epoch 2, step 3"):
        run.run()
    assert all(t.isfinite().all() for t in safetensors.torch.load(weights(tmp_path)).values())
