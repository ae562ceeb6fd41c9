"""What a training tells of itself: means over the updates since the last record, and returns of the last episodes."""

from collections import deque
from statistics import fmean
from typing import Any

import torch

from rfwp.rl.loss import ImpalaLoss
from rfwp.tasks.environments import Episode
from rfwp.train.distributed import World
from rfwp.train.log import duration

WINDOW = 100
"""Episodes whose returns are averaged."""
SUMS = ("total", "policy", "value", "entropy_loss")
"""Of a batch: over processes they are added, all others are averaged."""
NAMES = (*ImpalaLoss._fields, "gradient", "lag")
KINDS = ("return", "return_life")


class Meter:
    """One process's numbers; `record` joins those of all."""

    def __init__(self) -> None:
        self.returns = {kind: deque[float](maxlen=WINDOW) for kind in KINDS}
        self.episodes = 0
        """Games or, where lives end an episode, lives, since the start of the run."""
        self._updates: list[dict[str, float]] = []

    def add(self, metrics: dict[str, float], episodes: list[Episode]) -> None:
        self._updates.append(metrics)
        for episode in episodes:
            self.returns["return" if episode.whole else "return_life"].append(episode.score)
        lives = sum(not episode.whole for episode in episodes)
        self.episodes += lives or len(episodes)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"returns": {kind: list(window) for kind, window in self.returns.items()}, "episodes": self.episodes}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.episodes = state["episodes"]
        for kind, returns in state["returns"].items():
            self.returns[kind].extend(returns)

    def record(self, world: World, failures: int = 0) -> dict[str, float]:
        """Of all processes, since the last record; returns are left out until an episode has ended."""
        here = [fmean(update.get(name, 0.0) for update in self._updates) if self._updates else 0.0 for name in NAMES]
        most = max((update.get("lag_max", 0.0) for update in self._updates), default=0.0)
        for window in self.returns.values():
            here += [sum(window), len(window)]
        everywhere = torch.stack(world.gather(torch.tensor([*here, most, self.episodes, failures], dtype=torch.float64)))
        *numbers, _, episodes, failed = everywhere.sum(0).tolist()
        found = {name: n if name in SUMS else n / world.size for name, n in zip(NAMES, numbers, strict=False)}
        found["lag_max"] = everywhere[:, -3].max().item()
        sums = iter(numbers[len(NAMES) :])
        for kind, total, count in zip(KINDS, sums, sums, strict=True):
            if count:
                found[kind] = total / count
        self._updates.clear()
        return found | {"episodes": episodes, "failures": failed}


def describe(record: dict[str, float], steps: int) -> str:
    """One line: how far, how well, how fast."""
    parts = [f"{record['steps']:,.0f}/{steps:,} steps"]
    if record["steps_per_s"]:
        # the last update may go beyond the last step
        parts.append(f"{duration(max(0, steps - record['steps']) / record['steps_per_s'])} left")
    if "return" in record:
        parts.append(f"return {record['return']:.2f}")
    if "return_life" in record:
        parts.append(f"return a life {record['return_life']:.2f}")
    parts += [f"entropy {record['entropy']:.3f}", f"lag {record['lag']:.1f} (at most {record['lag_max']:.0f})"]
    parts += [f"weights cut {record['cut']:.1%}", f"lr {record['lr']:.2e}", f"{record['steps_per_s']:,.0f} steps/s"]
    if "busy" in record:
        parts.append(f"environments busy {record['busy']:.0%}")
    if record["failures"]:
        parts.append(f"{record['failures']:.0f} failures")
    return ", ".join(parts)
