"""Memory decides: agents that have one solve the game that needs it, the one without stays at chance."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent.parent / "examples" / "memory_game.py"))


@pytest.fixture(autouse=True)
def _one_thread():
    """Matrices this small are no work for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("core", ["lstm", "delta-net", "delta-rnn", "rdn"])
def test_an_agent_with_memory_solves_the_game(core):
    assert EXAMPLE["tested"](EXAMPLE["trained"](core)).mean > 0.9


def test_an_agent_without_memory_stays_at_chance():
    found = EXAMPLE["tested"](EXAMPLE["trained"]("feedforward"))
    # 1,000 games: a standard deviation of 0.014
    assert found.mean == pytest.approx(0.25, abs=0.06)


def test_the_example_says_how_often_each_agent_wins(capsys):
    EXAMPLE["main"](["rdn", "feedforward", "--steps", "1280", "--seeds", "1", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split() for line in lines] == [
        [core, "seed", seed] for core in ("rdn", "feedforward") for seed in "12"
    ]


def test_the_example_knows_its_agents(capsys):
    with pytest.raises(SystemExit) as leaving:
        EXAMPLE["main"](["gru"])
    assert leaving.value.code == 2
    assert "unknown agent 'gru'; known: feedforward, lstm" in capsys.readouterr().err
