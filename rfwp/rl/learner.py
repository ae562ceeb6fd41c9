"""Learning from unrolls: one RMSProp update each, and a training that is the same for the same seed."""

from collections.abc import Callable, Generator
from statistics import fmean

import torch
from torch import Tensor, nn

from rfwp.config import ImpalaConfig
from rfwp.errors import InvalidInput, unknown
from rfwp.models import Agent
from rfwp.rl.loss import ImpalaLoss, impala_loss
from rfwp.rl.unroll import Actor, Unroll
from rfwp.tasks.environments import Episode, VectorEnvironment
from rfwp.train import Diverged
from rfwp.train.random import derived

Learned = Generator[tuple[dict[str, float], list[Episode]], None, None]
"""The numbers of every update, and the episodes that ended before it."""


class Learner:
    """θ ← RMSProp(θ, clip(∇ loss(θ; unroll))), lr going linearly from config.lr to 0 over config.steps agent steps

    >>> learner = Learner(agent, ImpalaConfig(steps=1_000_000))
    >>> metrics = learner.update(actor.collect())

    RMSProp is PyTorch's, as in the authors' code: it divides by sqrt(mean square) + eps, where TensorFlow's, and so
    IMPALA's own, divides by sqrt(mean square + eps). With eps = 0.01 that is another step size. Its mean square begins at 0, and
    so it begins with steps that are up to 1 / sqrt(1 - alpha) times too large: config.warm_up has it begin with small ones.
    `reduce` is called between gradients and clipping: there several `processes` add up theirs.
    """

    def __init__(
        self,
        agent: Agent,
        config: ImpalaConfig,
        *,
        reduce: Callable[[], None] | None = None,
        processes: int = 1,
        autocast: bool = False,
    ):
        check_impala(config)
        self.agent, self.config, self.reduce, self.processes, self.autocast = agent, config, reduce, processes, autocast
        self.parameters = list(agent.parameters())
        self.device = self.parameters[0].device
        gpu = self.device.type == "cuda"
        # on a GPU it is read from the device, so that a CUDA graph can hold the whole update
        self.rate: float | Tensor = torch.tensor(config.lr, device=self.device) if gpu else config.lr
        self.optimiser = torch.optim.RMSprop(
            self.parameters, lr=self.rate, alpha=config.alpha, eps=config.eps, momentum=config.momentum, capturable=gpu
        )
        self.steps = self.updates = 0

    @property
    def lr(self) -> float:
        """Of the next update."""
        warm = min(1, (self.updates + 1) / (self.config.warm_up + 1))
        return self.config.lr * warm * (1 - min(self.steps, self.config.steps) / self.config.steps)

    def loss(self, unroll: Unroll) -> ImpalaLoss:
        """The agent runs over all T+1 observations from the actor's state, resets inside, in one call."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            output, _ = self.agent(unroll.observation, unroll.reward, unroll.state, unroll.done)
        return impala_loss(output, unroll, self.config)

    def update(self, unroll: Unroll) -> dict[str, float]:
        """Parts of the loss, entropy, importance weights, the gradient's norm before clipping, and returns if episodes ended."""
        lag = lag_of(unroll.versions, self.updates)
        lr = self.set_rate()
        self.optimiser.zero_grad()
        parts = self.gradients(unroll)
        if self.reduce is not None:
            self.reduce()
        norm = self.clip()
        # one look at the device for all numbers, before a bad gradient spoils the weights
        metrics = self.metrics(torch.cat((parts, norm.unsqueeze(0))).tolist(), lr)
        self.optimiser.step()
        self.count(unroll.steps)
        return metrics | lag | {"steps": float(self.steps)} | mean_returns(unroll.episodes)

    # --- The parts of an update ---

    def set_rate(self) -> float:
        """Give the optimiser the learning rate of the next update."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(self.lr)
        else:
            self.rate = self.lr
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        return self.lr

    def gradients(self, unroll: Unroll) -> Tensor:
        """Into the parameters; the loss's numbers as one tensor."""
        loss = self.loss(unroll)
        loss.total.backward()
        return torch.stack([part.detach() for part in loss])

    def clip(self) -> Tensor:
        """The gradient's norm before it is cut."""
        return nn.utils.clip_grad_norm_(self.parameters, self.config.clip)

    def metrics(self, numbers: list[float], lr: float) -> dict[str, float]:
        """With their names; numbers that are none stop the training."""
        metrics = dict(zip((*ImpalaLoss._fields, "gradient"), numbers, strict=True)) | {"lr": lr}
        if not all(abs(metrics[name]) < float("inf") for name in ("total", "gradient")):
            seen = f"loss {metrics['total']}, gradient {metrics['gradient']}"
            raise Diverged(f"update {self.updates + 1}: {seen}; try a smaller lr")
        return metrics

    def count(self, steps: int) -> None:
        """One update more, from so many agent steps of this process."""
        self.updates += 1
        self.steps += steps * self.processes


def lag_of(versions: list[int], updates: int) -> dict[str, float]:
    """Updates between the weights that acted and those that learn, over the steps of an unroll."""
    if not versions:
        return {}
    return {"lag": updates - fmean(versions), "lag_max": float(updates - min(versions))}


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
    for metrics, _ in lockstep(learner, actor):
        if report is not None:
            report(metrics)
    return learner


def lockstep(learner: Learner, actor: Actor) -> Learned:
    """The numbers of every update and the episodes that ended in its unroll, until the learner has had all its steps."""

    def collect() -> Unroll:
        actor.version = learner.updates
        return actor.collect()

    waiting = [collect()] if learner.config.lag else []
    while learner.steps < learner.config.steps:
        waiting.append(collect())
        unroll = waiting.pop(0)
        yield learner.update(unroll), unroll.episodes


def check_impala(config: ImpalaConfig) -> None:
    """Settings that cannot work, in one line."""
    for name in ("steps", "unroll", "batch", "environments", "groups"):
        if getattr(config, name) < 1:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use at least 1")
    if config.lag not in (0, 1):
        raise InvalidInput(f"impala.lag={config.lag}; lockstep training has a lag of 0 or 1")
    for name, known in (("mode", ("free", "lockstep")), ("precision", ("fp32", "tf32", "bf16"))):
        if getattr(config, name) not in known:
            raise unknown(f"impala.{name}", getattr(config, name), known)
    for name in ("max_lag", "warm_up"):
        if getattr(config, name) < 0:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use 0 or more")
    for name in ("lr", "eps", "clip", "reward_clip", "rho_bar", "c_bar", "pg_rho_bar"):
        if not getattr(config, name) > 0:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use a positive number")
    for name in ("discount", "trace", "alpha", "momentum"):
        if not 0 <= getattr(config, name) <= 1:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use a number from 0 to 1")
    for name in ("value_cost", "entropy_cost"):
        if not getattr(config, name) >= 0:
            raise InvalidInput(f"impala.{name}={getattr(config, name)}; use 0 or more")
