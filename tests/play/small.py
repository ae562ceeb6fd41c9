"""Small models for the page, saved as a user would have them."""

import base64
from pathlib import Path

import numpy as np
import torch

import rfwp
from rfwp.config import (
    AgentConfig,
    BlocksConfig,
    CoreConfig,
    EnvironmentConfig,
    FWPConfig,
    MemoryGameConfig,
    RLRunConfig,
    to_dict,
)
from rfwp.models import Agent
from rfwp.rl.result import RLFolder
from rfwp.train.checkpoint import LAST, PREVIOUS, Checkpoint
from rfwp.train.checkpoint import save as save_checkpoint
from tests.lm.saved import saved_model

SMALL = {"core.width": 16, "embedding": 16, "core.layers": 2, "core.heads": 2, "core.ff": 8}
PAPER = "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;"
LIST = "[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]"


def save(folder: Path, preset: str, **changes) -> str:
    torch.manual_seed(0)
    rfwp.build(preset, **SMALL | changes).save_pretrained(folder)
    return str(folder)


def save_three(folder: Path) -> list[str]:
    """Two models that execute programs and one that reads lists."""
    return [
        save(folder / "delta-rnn", "code-execution-5/delta-rnn"),
        save(folder / "linear-transformer", "code-execution-5/linear-transformer"),
        save(folder / "lists", "listops-10/rdn"),
    ]


def floats(text: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").reshape(shape).copy())


def save_language_model(folder: Path, core: str = "delta_rnn", **options) -> str:
    """23 words, with an adaptive softmax: `<eos>`, `<unk>`, `,` and word0 to word19."""
    saved_model(folder, core=core, **options)
    return str(folder)


def save_agent_run(folder: Path, core: CoreConfig, environment: EnvironmentConfig, **sizes) -> str:
    """As training leaves it: the run's config and a checkpoint."""
    torch.manual_seed(0)
    config = RLRunConfig(AgentConfig(core=core, features=8, **sizes), environment)
    agent = Agent(config.agent)
    folder.mkdir()
    RLFolder(folder).create(config)
    model = {"rfwp": rfwp.__version__, "model": to_dict(config.agent)}
    save_checkpoint(Checkpoint(agent.state_dict(), {}, model, {"steps": 0}), folder, LAST, PREVIOUS)
    return str(folder)


def save_catch(folder: Path, **layer) -> str:
    core = BlocksConfig(FWPConfig(**{"phi": "softmax", **layer}), width=8, layers=2, heads=2, ff=8)
    return save_agent_run(folder, core, MemoryGameConfig("catch"), actions=3, vector=50)
