"""Learning from unrolls: one RMSProp update each, and a training that is the same for the same seed."""

from collections.abc import Callable
from statistics import fmean

import torch
from torch import nn

from rfwp.config import ImpalaConfig
from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl.loss import ImpalaLoss, impala_loss
from rfwp.rl.unroll import Actor, Unroll
from rfwp.tasks.environments import Episode, VectorEnvironment
from rfwp.train import Diverged
from rfwp.train.random import derived


class Learner:
    """θ ← RMSProp(θ, clip(∇ loss(θ; unroll))), lr going linearly from config.lr to 0 over config.steps agent steps

    >>> learner = Learner(agent, ImpalaConfig(steps=1_000_000))
    >>> metrics = learner.update(actor.collect())

    RMSProp is PyTorch's, as in the authors' code: it divides by sqrt(mean square) + eps, where TensorFlow's, and so
    IMPALA's own, divides by sqrt(mean square + eps). With eps = 0.01 that is another step size.
    `reduce` is called between gradients and clipping: there several processes add up theirs.
    """

    def __init__(self, agent: Agent, config: ImpalaConfig, *, reduce: Callable[[], None] | None = None):
        check_impala(config)
        self.agent, self.config, self.reduce = agent, config, reduce
        self.parameters = list(agent.parameters())
        self.optimiser = torch.optim.RMSprop(
            self.parameters, lr=config.lr, alpha=config.alpha, eps=config.eps, momentum=config.momentum
        )
        self.steps = self.updates = 0

    @property
    def lr(self) -> float:
        """Of the next update."""
        return self.config.lr * (1 - min(self.steps, self.config.steps) / self.config.steps)

    def loss(self, unroll: Unroll) -> ImpalaLoss:
        """The agent runs over all T+1 observations from the actor's state, resets inside, in one call."""
        output, _ = self.agent(unroll.observation, unroll.reward, unroll.state, unroll.done)
        return impala_loss(output, unroll, self.config)

    def update(self, unroll: Unroll) -> dict[str, float]:
        """Parts of the loss, entropy, importance weights, the gradient's norm before clipping, and returns if episodes ended."""
        lr = self.lr
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.zero_grad()
        loss = self.loss(unroll)
        loss.total.backward()
        if self.reduce is not None:
            self.reduce()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        # one look at the device for all numbers, before a bad gradient spoils the weights
        *parts, gradient = torch.stack([*(part.detach() for part in loss), norm]).tolist()
        metrics = dict(zip(ImpalaLoss._fields, parts, strict=True)) | {"gradient": gradient, "lr": lr}
        if not all(abs(number) < float("inf") for number in (metrics["total"], gradient)):
            raise Diverged(f"update {self.updates + 1}: loss {metrics['total']}, gradient {gradient}; try a smaller lr")
        self.optimiser.step()
        self.updates += 1
        self.steps += unroll.steps
        return metrics | {"steps": float(self.steps)} | mean_returns(unroll.episodes)


def mean_returns(episodes: list[Episode]) -> dict[str, float]:
    """`return` of whole games and `return_life` of lives; a kind of which none ended is left out."""
    kinds = {"return": [e.score for e in episodes if e.whole], "return_life": [e.score for e in episodes if not e.whole]}
    return {name: fmean(scores) for name, scores in kinds.items() if scores}


def train_lockstep(
    agent: Agent,
    environment: VectorEnvironment,
    config: ImpalaConfig,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Learner:
    """Unroll, update, unroll, update, ... for config.steps agent steps, in one thread; `report` gets the numbers of every update.

    With lag=0 an unroll comes from the weights that learn from it; with lag=1 from those one update older, as if
    the actor had worked while the learner did. Either way the same seed and weights give the same training.
    """
    learner = Learner(agent, config)
    actor = Actor(agent, environment, config.unroll, seed=derived(config.seed, "actor") % 2**31)
    waiting = [actor.collect()] if config.lag else []
    while learner.steps < config.steps:
        waiting.append(actor.collect())
        metrics = learner.update(waiting.pop(0))
        if report is not None:
            report(metrics)
    return learner


def check_impala(config: ImpalaConfig) -> None:
    """Settings that cannot work, in one line."""
    for name in ("steps", "unroll"):
        if getattr(config, name) < 1:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use at least 1")
    if config.lag not in (0, 1):
        raise InvalidInput(f"impala.lag={config.lag}; lockstep training has a lag of 0 or 1")
    for name in ("lr", "eps", "clip", "reward_clip", "rho_bar", "c_bar", "pg_rho_bar"):
        if not getattr(config, name) > 0:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use a positive number")
    for name in ("discount", "trace", "alpha", "momentum"):
        if not 0 <= getattr(config, name) <= 1:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use a number from 0 to 1")
    for name in ("value_cost", "entropy_cost"):
        if not getattr(config, name) >= 0:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use 0 or more")
