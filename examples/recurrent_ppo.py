"""Recurrent PPO in plain PyTorch, with nn.LSTM or a fast weight programmer as its memory.

    python examples/recurrent_ppo.py --core rdn          # or delta_rnn, delta_net, lstm, none

The game shows a symbol once, then nothing for some steps, then asks for it: who has no memory guesses, and is right once in four
times. Everything here is an ordinary PPO but for two habits that any memory needs, and that all cores share:

    y, state = core(x, state, reset)        # x (B, T, width), reset (B, T): episodes that begin inside of the unroll

While playing, T is 1 and the state goes from step to step. While learning, T is the whole unroll: one call from the state that
it began with, so that gradients flow back through all of its steps, and stop where an episode began.
"""

import argparse
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import rfwp
from rfwp.config import MemoryGameConfig
from rfwp.tasks.environments import VectorEnvironment, make

WIDTH, GAMES, UNROLL = 32, 64, 24
DISCOUNT, TRACE, CLIP, EPOCHS = 0.95, 0.95, 0.2, 4
VALUE_COST, ENTROPY_COST, MAX_NORM, LR = 0.5, 0.01, 0.5, 3e-3
CORES = ("rdn", "delta_rnn", "delta_net", "lstm", "none")


class NoMemory(nn.Module):
    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        return x, ()


def make_core(name: str) -> nn.Module:
    """The line that decides: everything below is the same for all of them."""
    if name == "none":
        return NoMemory()
    if name == "lstm":
        return rfwp.LSTM(WIDTH, WIDTH)  # the weights of nn.LSTM, and `reset`
    return rfwp.Block(rfwp.FWP(name, WIDTH, heads=4), WIDTH, ff=2 * WIDTH)


class ActorCritic(nn.Module):
    """logits, value = heads(core(encoder(observation)))"""

    def __init__(self, core: nn.Module, inputs: int, actions: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, WIDTH), nn.Tanh())
        self.core = core
        self.policy, self.value = nn.Linear(WIDTH, actions), nn.Linear(WIDTH, 1)

    def forward(self, observation: Tensor, state: Any, reset: Tensor) -> tuple[Tensor, Tensor, Any]:
        y, state = self.core(self.encoder(observation), state, reset)
        return self.policy(y), self.value(y).squeeze(-1), state


class Unroll(NamedTuple):
    """T steps of B games."""

    observation: Tensor  # B T inputs
    begins: Tensor  # B T: an episode begins with this observation
    action: Tensor  # B T
    log_prob: Tensor  # B T: of that action, by the policy that took it
    value: Tensor  # B T
    reward: Tensor  # B T
    ends: Tensor  # B T: the action ended the episode
    state: Any  # the core's, before the first observation
    last_value: Tensor  # B: of the observation after the last


class Player:
    """Plays on from unroll to unroll; the core's state is kept here, outside of the model."""

    def __init__(self, model: ActorCritic, games: VectorEnvironment, seed: int):
        self.model, self.games = model, games
        first = games.reset(seed)
        self.observation, self.begins = torch.from_numpy(first.observation), torch.from_numpy(first.done)
        self.state: Any = None

    @torch.no_grad()
    def unroll(self) -> Unroll:
        begun_with, steps = self.state, []
        for _ in range(UNROLL):
            observation, begins = self.observation, self.begins
            logits, value, self.state = self._look()
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            self.games.send(action.numpy())
            seen = self.games.recv()
            self.observation, self.begins = torch.from_numpy(seen.observation), torch.from_numpy(seen.done)
            reward = torch.from_numpy(seen.reward)
            steps.append((observation, begins, action, policy.log_prob(action), value, reward, self.begins))
        _, last_value, _ = self._look()
        return Unroll(*(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True)), begun_with, last_value)

    def _look(self) -> tuple[Tensor, Tensor, Any]:
        logits, value, state = self.model(self.observation.unsqueeze(1), self.state, self.begins.unsqueeze(1))
        return logits.squeeze(1), value.squeeze(1), state


def advantages(unroll: Unroll) -> Tensor:
    """A_t = δ_t + γ λ A_{t+1},  δ_t = r_t + γ V_{t+1} - V_t,  without what comes behind the end of an episode"""
    result, after, next_value = [], torch.zeros_like(unroll.last_value), unroll.last_value
    for t in reversed(range(UNROLL)):
        goes_on = (~unroll.ends[:, t]).float()
        delta = unroll.reward[:, t] + DISCOUNT * goes_on * next_value - unroll.value[:, t]
        after = delta + DISCOUNT * TRACE * goes_on * after
        next_value = unroll.value[:, t]
        result.append(after)
    return torch.stack(result[::-1], dim=1)


def ppo_loss(model: ActorCritic, unroll: Unroll, advantage: Tensor) -> Tensor:
    """-min(r A, clip(r, 1 ± ε) A) + c_V (V - target)² - c_H H,  r = π(a) / π_old(a)"""
    logits, value, _ = model(unroll.observation, unroll.state, unroll.begins)
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(unroll.action) - unroll.log_prob).exp()
    normed = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.minimum(ratio * normed, ratio.clamp(1 - CLIP, 1 + CLIP) * normed).mean()
    value_loss = (value - (advantage + unroll.value)).square().mean()
    return -gain + VALUE_COST * value_loss - ENTROPY_COST * policy.entropy().mean()


def train(core: str, updates: int, length: int, seed: int) -> float:
    """The mean return of the last twentieth of all updates."""
    torch.manual_seed(seed)
    games = make(MemoryGameConfig("recall", length=length), GAMES)
    model = ActorCritic(make_core(core), games.shape[0], games.actions)
    optimiser = torch.optim.Adam(model.parameters(), lr=LR)
    player, begun, returns, mean = Player(model, games, seed), time.perf_counter(), [], 0.0
    for update in range(1, updates + 1):
        unroll = player.unroll()
        advantage = advantages(unroll)
        for _ in range(EPOCHS):
            optimiser.zero_grad()
            ppo_loss(model, unroll, advantage).backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimiser.step()
        returns.append([episode.score for episode in games.finished()])
        if update % max(1, updates // 20) == 0:
            recent = [score for scores in returns[-max(1, updates // 20) :] for score in scores]
            # a long game may not have ended yet
            mean = sum(recent) / len(recent) if recent else mean
            steps, seconds = update * GAMES * UNROLL, time.perf_counter() - begun
            print(f"{core}: {steps:>9,} steps, {seconds:5.1f} s, mean return {mean:.2f}", flush=True)
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description="Recurrent PPO on a game that needs memory.")
    parser.add_argument("--core", choices=CORES, default="rdn", help="the memory")
    parser.add_argument("--updates", type=int, default=200, help="of 64 games and 24 steps each")
    parser.add_argument("--length", type=int, default=8, help="steps between seeing the symbol and naming it")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    mean = train(options.core, options.updates, options.length, options.seed)
    print("solved" if mean > 0.9 else "not solved: guessing is right once in four times")


if __name__ == "__main__":
    main()
