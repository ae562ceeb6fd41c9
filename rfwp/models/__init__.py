"""Whole models: tokens to tokens, frames to actions; all save and load without pickle."""

from pathlib import Path
from typing import Any

import torch

from rfwp.models.agent import Agent, AgentOutput
from rfwp.models.pretrained import locate, read_config
from rfwp.models.sequence import SequenceModel

__all__ = ["Agent", "AgentOutput", "SequenceModel", "load"]


def load(
    dir_or_hub_id: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, **hub: Any
) -> SequenceModel | Agent:
    """A saved model, whichever it is: from a folder, from rfwp itself by its name ("code-execution-5"), or from the Hugging
    Face hub by its id ("user/model"). A folder that is here wins.

    `dtype` is the saved one if none is given.
    `hub` goes to the download: revision, token, cache_dir, force_download, local_files_only.
    """
    folder = locate(dir_or_hub_id, **hub)
    config = read_config(folder)
    cls = next(c for c in (SequenceModel, Agent) if isinstance(config, c.config_class))
    return cls.from_pretrained(folder, device=device, dtype=dtype)
