"""The README's examples run, in order, as one program; so does the fast net of CONTRIBUTING.md."""

import os

import torch

from rfwp import FWP, Composition
from rfwp.fwp import fast
from tests.pages import python_blocks, run_page


def test_readme_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_page("README.md")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4"
    assert "Recurrent/Delta fast RNN" in said
    assert names["logits"].shape == (2, 50, 26)
    assert names["W"].shape == (2, 4, 32, 16)
    assert {"config.json", "model.safetensors"} <= set(os.listdir("my-model"))


def test_contributing_fast_net_works_in_every_way():
    (block,) = python_blocks("CONTRIBUTING.md")
    names = dict(vars(fast))
    names["__name__"] = __name__
    lines = [line[3:] if line.startswith("   ") else line for line in block.splitlines()]
    exec(compile("\n".join(lines), "CONTRIBUTING.md", "exec"), names)
    for slow in ("feedforward", "recurrent", "lstm"):
        layer = FWP(Composition(slow=slow, fast=names["Gated"]()), 8, 2)
        y, state = layer(torch.randn(2, 5, 8))
        y.sum().backward()
        assert set(state) >= {"W", "G"}
