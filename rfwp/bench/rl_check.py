"""Before agents are timed: recorded actions and updates against plain ones, and the actors' logits against the learner's."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace

import torch

from rfwp.config import RLRunConfig
from rfwp.rl.free import Free
from rfwp.rl.learner import Learner
from rfwp.rl.trainer import RLTrainer
from rfwp.rl.updates import Updates
from rfwp.train.step import WARM_UP

LIMITS = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 0.1}
"""Largest difference of logits and, relative to how far they moved, of weights."""


def check(config: RLRunConfig, make_trainer: Callable[[RLRunConfig, str], RLTrainer]) -> str:
    """What is wrong, or nothing. A few updates of a small free training whose weights hardly move, then of one that learns."""
    impala = replace(config.impala, environments=16, groups=2, batch=8, unroll=8, max_lag=4, lr=1e-9)
    limit = LIMITS[impala.precision]
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(replace(config, impala=impala), folder)
        with trainer.at_work():
            free = trainer.free()
            if (error := logits_error(trainer, free)) > limit:
                return f"the learner's logits differ from the actors' by {error:.1e} > {limit:.0e}"
            if (error := updates_error(trainer, free)) > limit:
                return f"recorded updates differ from plain ones by {error:.1e} > {limit:.0e}"
    return ""


def logits_error(trainer: RLTrainer, free: Free) -> float:
    """The largest over some updates, recorded ones among them."""
    worst = 0.0
    for n, _ in enumerate(free.run()):
        batch = free.updates.batch
        with torch.no_grad(), torch.autocast(trainer.world.device.type, torch.bfloat16, enabled=trainer.autocast):
            output, _ = trainer.agent(batch.observation, batch.reward, batch.state, batch.done)
        worst = max(worst, (output.logits[:, :-1].float() - batch.logits).abs().max().item())
        if n >= WARM_UP + 4:
            break
    return worst


def updates_error(trainer: RLTrainer, free: Free) -> float:
    """How much weights differ after some updates from one batch, relative to how far they have moved."""
    config = replace(trainer.config.impala, lr=1e-3)
    moved = []
    for record in (trainer.graphs, False):
        agent = copy.deepcopy(trainer.agent)
        learner = Learner(agent, config, autocast=trainer.autocast)
        updates = Updates(learner, free.updates.batch, record=record)
        for _ in range(WARM_UP + 4):
            updates.start()
            updates.finish(wait=True)
        before, after = (torch.cat([p.detach().flatten() for p in a.parameters()]) for a in (trainer.agent, agent))
        moved.append(after - before)
    return ((moved[0] - moved[1]).norm() / moved[1].norm().clamp(min=1e-12)).item()
