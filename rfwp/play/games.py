"""Games that agents play for the page: one at a time, its latest steps kept, closed when nobody looks."""

import base64
import math
import secrets
import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.play.picture import png
from rfwp.play.shown import ShownAgent
from rfwp.play.traces import bytes_a_step
from rfwp.play.view import describe_layers, describe_memory, export_layers, scale, written
from rfwp.rl.watch import Moment, Watched
from rfwp.trace import LayerTrace, Recorded, check_fast_weights, shares

MOST_KEPT = 600
MOST_BYTES = 2**28
"""Of the fast weights of all kept steps."""
MOST_AT_ONCE = 64
IDLE = 600.0
"""Seconds without a request, after which a game is closed."""
NOTHING = np.empty((0, 0, 3), np.uint8)


@dataclass(frozen=True)
class Played:
    """One step of a game."""

    moment: Moment
    layers: tuple[LayerTrace, ...]


class Game:
    """A game as far as it was played, and its latest steps."""

    def __init__(self, shown: ShownAgent, seed: int, sample: bool):
        self.shown, self.seed, self.sample = shown, seed, sample
        self.recorded = _recorded(shown.model)
        agent = shown.model if self.recorded is None else self.recorded.model
        self.watched = Watched(agent, shown.environment, seed=seed, greedy=not sample)
        self._moments = iter(self.watched)
        # a step keeps what it found and what it left
        most = MOST_KEPT if self.recorded is None else min(MOST_KEPT, max(2, MOST_BYTES // (2 * bytes_a_step(shown.model))))
        self.kept: deque[Played] = deque(maxlen=most)
        self.steps, self.over = 0, False
        self._scales: list[list[float]] = []

    def play(self, steps: int) -> dict[str, Any]:
        """So many steps more, fewer at the end of the game."""
        if not 1 <= steps <= MOST_AT_ONCE:
            raise InvalidInput(f"steps={steps} does not fit; use 1 to {MOST_AT_ONCE}")
        new: list[dict[str, Any]] = []
        while len(new) < steps and not self.over:
            moment = next(self._moments, None)
            if moment is None:
                self.over = True
                break
            if not math.isfinite(moment.value):
                raise InvalidInput(f"{self.shown.name} expects {moment.value} of this game; its weights may be damaged")
            layers = () if self.recorded is None else self.recorded.layers
            # the page has the screen now, and screens may be large
            self.kept.append(Played(replace(moment, screen=NOTHING), layers))
            new.append(_describe(self.steps, moment, layers))
            self._rescale(layers)
            self.steps += 1
        latest = describe_layers(self.kept[-1].layers if self.kept else ())
        return {"moments": new, "first": self.first, "steps": self.steps, "over": self.over, "scales": self._scales, **latest}

    @property
    def sizes(self) -> tuple[int, int]:
        """Layers and heads with fast weights."""
        blocks: Any = () if self.recorded is None else self.shown.model.core.blocks
        return len(blocks), blocks[0].layer.heads if blocks else 0

    @property
    def first(self) -> int:
        """The oldest step that is kept."""
        return self.steps - len(self.kept)

    def step(self, t: int, layer: int, head: int) -> dict[str, Any]:
        """A layer's fast weights at step t; shares are those of the steps from the first kept one on."""
        self._check(t)
        if not self.kept[0].layers:
            return {"t": t, "layer": layer, "head": head, "matrices": []}
        record, sources = self.kept[t - self.first].layers[layer], {}
        for name, now in record.matrices.items():
            past = [played.layers[layer].matrices[name] for played in islice(self.kept, t - self.first + 1)]
            keys, writes, restarts = (torch.cat([getattr(m, part) for m in past]) for part in ("keys", "writes", "restarts"))
            sources[name] = shares(keys, writes, restarts, now.queries[0], now.reads[0])[:, head]
        return {"t": t, "layer": layer, "head": head, **describe_memory(record, 0, sources)}

    def export(self, t: int) -> dict[str, Any]:
        """One step of all layers as plain numbers."""
        self._check(t)
        moment, layers = self.kept[t - self.first].moment, self.kept[t - self.first].layers
        return {
            "model": self.shown.name,
            "seed": self.seed,
            "sampled": self.sample,
            "step": t,
            "action": self.watched.actions[moment.action],
            "probabilities": dict(zip(self.watched.actions, moment.probabilities, strict=True)),
            "value": moment.value,
            "score": moment.score,
            "layers": export_layers(layers, 0),
        }

    def close(self) -> None:
        self.watched.close()

    def _check(self, t: int) -> None:
        if not self.first <= t < self.steps:
            raise InvalidInput(f"t={t} does not fit; use {self.first} to {self.steps - 1}, the steps that are kept")

    def _rescale(self, layers: tuple[LayerTrace, ...]) -> None:
        """Colours may fade as weights grow, but never come back."""
        new = [[scale(m.weights) for m in layer.matrices.values()] for layer in layers]
        old = self._scales or new
        self._scales = [[max(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(old, new, strict=True)]


class Games:
    """The game of the page, under a key; a new one takes its place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._key = ""
        self._game: Game | None = None
        self._clock: threading.Timer | None = None

    def start(self, shown: ShownAgent, seed: int, sample: bool) -> tuple[str, Game]:
        with self.lock:
            self._end()
            game, key = self._game, self._key = Game(shown, seed, sample), secrets.token_hex(8)
        self._wind()
        # the clock may have closed it already
        return key, game

    def get(self, key: str) -> Game | None:
        if key != self._key:
            return None
        self._wind()
        return self._game

    def close(self) -> None:
        """Nobody looks any more."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        if self._game is not None:
            self._game.close()
        self._key, self._game = "", None

    def _wind(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = threading.Timer(IDLE, self.close)
        # a server that ends does not wait for it
        self._clock.daemon = True
        self._clock.start()


def _recorded(agent: Agent) -> Recorded[Agent] | None:
    try:
        check_fast_weights(agent)
    except InvalidInput:
        return None
    return Recorded(agent)


def _describe(t: int, moment: Moment, layers: tuple[LayerTrace, ...]) -> dict[str, Any]:
    return {
        "t": t,
        "frame": base64.b64encode(png(moment.screen)).decode("ascii"),
        "probabilities": [round(p, 4) for p in moment.probabilities],
        "action": moment.action,
        "value": round(moment.value, 4),
        "score": moment.score,
        "written": [[round(w, 5) for w in written(layer)[0].tolist()] for layer in layers],
        "restart": bool(layers and next(iter(layers[0].matrices.values())).restarts[0]),
    }
