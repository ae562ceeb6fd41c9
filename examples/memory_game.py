"""Agents with and without memory learn a game that needs it, on the CPU, about ten seconds each.

    python examples/memory_game.py                        # all agents
    python examples/memory_game.py rdn lstm --seeds 1 2 3

The game shows one of four symbols, then nothing for four steps, then asks for it. An agent that cannot remember is right once in
four times. All are trained with IMPALA, as the paper's Atari agents are, with the gradient through all steps of an unroll.
"""

import argparse
import time
from dataclasses import replace

import torch

from rfwp.config import AgentConfig, BlocksConfig, FWPConfig, ImpalaConfig, LSTMConfig, MemoryGameConfig, NoCoreConfig
from rfwp.models import Agent
from rfwp.rl import train_lockstep
from rfwp.rl.evaluate import Evaluation, evaluate
from rfwp.tasks.environments import make

GAME, GAMES, WIDTH = MemoryGameConfig("recall", length=4, symbols=4), 64, 32
IMPALA = ImpalaConfig(steps=300_000, unroll=20, lr=3e-3, eps=1e-3, clip=10.0, discount=0.95)


def blocks(layer: FWPConfig) -> BlocksConfig:
    return BlocksConfig(layer, width=WIDTH, layers=1, heads=4, ff=2 * WIDTH)


CORES = {
    "feedforward": NoCoreConfig(),
    "lstm": LSTMConfig(hidden=2 * WIDTH),
    "delta-net": blocks(FWPConfig(phi="elu_sum_eps")),
    "delta-rnn": blocks(FWPConfig(fast="rnn", phi="softmax")),
    "rdn": blocks(FWPConfig(slow="recurrent", phi="softmax")),
}


def trained(core: str, seed: int = 1, steps: int = IMPALA.steps) -> Agent:
    """An agent that has had so many steps of the game."""
    games = make(GAME, GAMES)
    torch.manual_seed(seed)
    agent = Agent(AgentConfig(actions=games.actions, core=CORES[core], features=WIDTH, vector=games.shape[0]))
    train_lockstep(agent, games, replace(IMPALA, steps=steps, seed=seed))
    return agent


def tested(agent: Agent) -> Evaluation:
    """Five times 200 games, always with the most probable action; their mean is the part of games that it wins."""
    return evaluate(agent, GAME, episodes=200, runs=5)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Agents with and without memory learn a game that needs it.")
    parser.add_argument("agents", nargs="*", metavar="agent", help=f"some of: {' '.join(CORES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=IMPALA.steps)
    options = parser.parse_args(arguments)
    for core in options.agents or CORES:
        if core not in CORES:
            parser.error(f"unknown agent '{core}'; known: {', '.join(CORES)}")
        for seed in options.seeds:
            begun = time.perf_counter()
            found = tested(trained(core, seed, options.steps))
            seconds = time.perf_counter() - begun
            print(f"{core:<12} seed {seed}: wins {found.mean:6.1%} ± {found.std:.1%} of its games, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
