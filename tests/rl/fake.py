"""Environments so small that agents learn them in seconds, and agents to match."""

import numpy as np
import torch

from rfwp.config import AgentConfig, BlocksConfig, FWPConfig, LSTMConfig, NoCoreConfig
from rfwp.models import Agent
from rfwp.tasks.environments import Episode, Step

SMALL = {"width": 12, "layers": 2, "heads": 3, "ff": 10}
FAST_WEIGHTS = {
    "linear transformer": BlocksConfig(layer=FWPConfig(rule="sum"), **SMALL),
    "delta net": BlocksConfig(layer=FWPConfig(phi="softmax"), **SMALL),
    "delta rnn": BlocksConfig(layer=FWPConfig(fast="rnn", phi="softmax"), **SMALL),
    "rdn": BlocksConfig(layer=FWPConfig(slow="recurrent", phi="softmax"), **SMALL),
}
CORES = {"feedforward": NoCoreConfig(), "lstm": LSTMConfig(hidden=7), **FAST_WEIGHTS}


class Fake:
    """What both have in common: actions sent are taken by the next `recv`, scores are added up."""

    dtype = np.dtype(np.float32)

    def __init__(self, n, size, actions):
        self.n, self.shape, self.actions = n, (size,), actions

    def reset(self, seed):
        self.random = np.random.default_rng(seed)
        self.clock = np.zeros(self.n, dtype=int)
        self.score = np.zeros(self.n)
        self.over = []
        self.begin(np.ones(self.n, dtype=bool))
        return Step(self.look(), np.zeros(self.n, np.float32), np.ones(self.n, dtype=bool))

    def send(self, actions):
        self.sent = actions

    def recv(self):
        reward, done = self.take(self.sent)
        self.score += reward
        self.clock += 1
        self.over += [Episode(float(self.score[i]), int(self.clock[i]), True) for i in np.flatnonzero(done)]
        self.score[done] = self.clock[done] = 0
        self.begin(done)
        return Step(self.look(), reward.astype(np.float32), done)

    def finished(self):
        over, self.over = self.over, []
        return over

    def close(self):
        pass


class Noise(Fake):
    """Noise in, rewards up to 4 in size out; an episode ends with probability 0.1 at each step."""

    def __init__(self, n=3, size=5, actions=4):
        super().__init__(n, size, actions)

    def begin(self, rows):
        pass

    def look(self):
        return self.random.standard_normal((self.n, *self.shape), dtype=np.float32)

    def take(self, actions):
        return actions + self.random.random(self.n) - 0.5, self.random.random(self.n) < 0.1


class Recall(Fake):
    """A cue is shown, then nothing for some steps; then an action is asked for, and 1 earned if it is the cue."""

    def __init__(self, n=16, cues=4, wait=3):
        super().__init__(n, cues + 1, cues)
        self.wait = wait
        self.cue = np.zeros(n, dtype=int)

    def begin(self, rows):
        self.cue[rows] = self.random.integers(self.actions, size=rows.sum())

    def look(self):
        seen = np.zeros((self.n, *self.shape), np.float32)
        first = self.clock == 0
        seen[first, self.cue[first]] = 1
        seen[self.clock == self.wait + 1, -1] = 1
        return seen

    def take(self, actions):
        asked = self.clock == self.wait + 1
        return asked * (actions == self.cue).astype(float), asked


def make_agent(core, environment, seed=0, features=8):
    torch.manual_seed(seed)
    return Agent(AgentConfig(actions=environment.actions, core=core, features=features, vector=environment.shape[0]))
