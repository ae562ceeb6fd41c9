"""What one would write first: gymnasium's vector environment, PyTorch, one thing after another."""

import time

import numpy as np
import torch

from rfwp.config import RLRunConfig
from rfwp.rl.trainer import RLTrainer
from rfwp.rl.unroll import Unroll
from rfwp.tasks.gym import atari_vector


def plain_loop(trainer: RLTrainer, config: RLRunConfig, seconds: float) -> float:
    """Agent steps a second of IMPALA with as many environments as a batch has unrolls."""
    N, T, agent, device = trainer.rows, config.impala.unroll, trainer.agent, trainer.world.device
    environments = atari_vector(config.environment.game, N)  # type: ignore[union-attr]
    observation, _ = environments.reset(seed=1)
    reward, done, state = np.zeros(N, np.float32), np.ones(N, bool), None
    updates, start = -1, time.perf_counter()
    while time.perf_counter() - start < seconds or updates < 1:
        seen, first = [], state
        for _ in range(T + 1):
            now = torch.tensor(observation, device=device), torch.tensor(reward, device=device), torch.tensor(done, device=device)
            with torch.no_grad():
                output, after = agent.step(now[0], now[1], state, now[2])
            action = torch.distributions.Categorical(logits=output.logits).sample()
            seen.append((*now, action, output.logits))
            if len(seen) <= T:
                state = after
                observation, reward, terminated, truncated, _ = environments.step(action.cpu().numpy())
                reward, done = reward.astype(np.float32), terminated | truncated
        observations, rewards, dones, actions, logits = (torch.stack(part, 1) for part in zip(*seen, strict=True))
        trainer.learner.update(Unroll(observations, rewards, dones, actions[:, :T], logits[:, :T], first))
        updates += 1
        if updates == 0:
            # the first update tunes and compiles
            start = time.perf_counter()
    environments.close()
    return updates * N * T / (time.perf_counter() - start)
