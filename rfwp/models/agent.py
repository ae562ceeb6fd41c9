"""Observation and last reward in, policy and value out, at every step: the models of the Atari experiments."""

from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.config import AgentConfig, AgentInit, BlocksConfig, StemName
from rfwp.errors import InvalidInput, check_device, check_reset, check_shapes, check_tensor, unknown
from rfwp.layers.state import check_step
from rfwp.models.core import build_core
from rfwp.models.pretrained import Pretrained


class AgentOutput(NamedTuple):
    logits: Tensor  # B T actions
    value: Tensor  # B T


class Residual(nn.Module):
    """y = x + conv(relu(conv(relu(x))))"""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Section(nn.Sequential):
    """Convolution, max pooling that halves the image, two residual blocks: five convolutions."""

    def __init__(self, inputs: int, outputs: int):
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1), pool, Residual(outputs), Residual(outputs))


class Stem(nn.Module):
    """The residual vision net of IMPALA's large architecture: frames (N, C, H, W) uint8 -> features (N, features)

    x = frames / 255;  x = section(x) for each section;  y = relu(W relu(x) + b)
    """

    def __init__(self, frames: int, pixels: int, channels: tuple[int, ...], features: int):
        super().__init__()
        sizes = (frames, *channels)
        self.sections = nn.Sequential(*(Section(i, o) for i, o in zip(sizes, channels, strict=False)))
        for _ in channels:
            pixels = -(-pixels // 2)
        self.out = nn.Linear(sizes[-1] * pixels * pixels, features)

    def forward(self, frames: Tensor) -> Tensor:
        x = self.sections(frames.to(self.out.weight.dtype) / 255)
        return F.relu(self.out(F.relu(x).flatten(1)))


class ShallowStem(nn.Module):
    """IMPALA's small vision net: frames (N, C, H, W) uint8 -> features (N, features)

    x = frames / 255;  x = relu(conv 8x8 by 4 (x));  x = relu(conv 4x4 by 2 (x));  y = relu(W x + b)
    """

    def __init__(self, frames: int, pixels: int, features: int):
        super().__init__()
        side = ((pixels - 8) // 4 + 1 - 4) // 2 + 1
        if pixels < 8 or side < 1:
            raise InvalidInput(f"Agent: frames of {pixels} pixels are too small for a shallow stem; use stem=deep")
        self.first, self.second = nn.Conv2d(frames, 16, 8, stride=4), nn.Conv2d(16, 32, 4, stride=2)
        self.out = nn.Linear(32 * side * side, features)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.first(frames.to(self.out.weight.dtype) / 255))
        return F.relu(self.out(F.relu(self.second(x)).flatten(1)))


class VectorStem(nn.Module):
    """y = relu(W relu(V x + a) + b): vectors (N, inputs) -> features (N, features)"""

    def __init__(self, inputs: int, features: int):
        super().__init__()
        self.first, self.out = nn.Linear(inputs, features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.out(F.relu(self.first(x.to(self.out.weight.dtype)))))


class Agent(Pretrained):
    """logits_t, value_t = heads(core([stem(observation_t), clip(reward_t, -1, 1)]))

    >>> agent = Agent(AgentConfig(actions=6))
    >>> (logits, value), state = agent(frames, reward)                  # frames (B, T, 4, 84, 84) uint8, reward (B, T)
    >>> (logits, value), state = agent.step(frame, reward, state, done) # frame (B, 4, 84, 84), reward and done (B,)

    An agent with `vector` set sees vectors (B, T, vector) in place of frames.
    reward_t is the one that came with observation_t, before the agent acts. Blocks stand behind a linear map from the stem's
    features and the reward to their width. The state is the core's.
    """

    config_class = AgentConfig

    def __init__(self, config: AgentConfig):
        super().__init__()
        _check(config)
        self.config = config
        self.stem: nn.Module
        if config.vector:
            self.stem = VectorStem(config.vector, config.features)
        elif config.stem == "shallow":
            self.stem = ShallowStem(config.frames, config.pixels, config.features)
        else:
            self.stem = Stem(config.frames, config.pixels, config.channels, config.features)
        inputs = config.features + 1
        self.project: nn.Module = nn.Identity()
        if isinstance(config.core, BlocksConfig):
            self.project = nn.Linear(inputs, config.core.width)
            inputs = config.core.width
        self.core = build_core(config.core, inputs)
        self.policy = nn.Linear(self.core.outputs, config.actions)
        self.value = nn.Linear(self.core.outputs, 1)
        if config.init == "orthogonal":
            self._start_orthogonal()

    def forward(
        self, observation: Tensor, reward: Tensor, state: Any = None, reset: Tensor | None = None
    ) -> tuple[AgentOutput, Any]:
        """observation (B, T, ...), reward and reset (B, T) -> logits (B, T, actions), value (B, T) and the state.

        Observations are frames (B, T, C, H, W) uint8 or vectors (B, T, vector).
        """
        self._check(observation, reward, reset)
        features = self.stem(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])  # B T F
        clipped = reward.to(features.dtype).clamp(-1, 1).unsqueeze(-1)
        x, state = self.core(self.project(torch.cat((features, clipped), dim=-1)), state, reset)
        # in half precision values would move in steps larger than what there is to learn from
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.value.weight.dtype)
            return AgentOutput(self.policy(x), self.value(x).squeeze(-1)), state

    def step(
        self, observation: Tensor, reward: Tensor, state: Any = None, reset: Tensor | None = None
    ) -> tuple[AgentOutput, Any]:
        """One step, observation (B, ...), reward (B,), reset (B,) -> logits (B, actions), value (B,) and the next state."""
        check_step("Agent.step", "reward", reward, "B", reset)
        check_tensor("Agent.step", "observation", observation)
        reset = None if reset is None else reset.unsqueeze(-1)
        output, state = self(observation.unsqueeze(1), reward.unsqueeze(-1), state, reset)
        return AgentOutput(output.logits.squeeze(1), output.value.squeeze(1)), state

    def _start_orthogonal(self) -> None:
        """Stem and heads; the core stays. Residual branches begin small, or what the stem gives would grow with its depth."""
        ends = {module.second for module in self.stem.modules() if isinstance(module, Residual)}
        gains = {m: 0.1 if m in ends else 2**0.5 for m in self.stem.modules() if isinstance(m, nn.Conv2d | nn.Linear)}
        for module, gain in (gains | {self.policy: 0.01, self.value: 1.0}).items():
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def _check(self, observation: Tensor, reward: Tensor, reset: Tensor | None) -> None:
        c = self.config
        name, shape = ("vector", f"B T {c.vector}") if c.vector else ("frames", f"B T {c.frames} {c.pixels} {c.pixels}")
        size = check_shapes("Agent", {name: (observation, shape), "reward": (reward, "B T")})
        if c.vector and not observation.dtype.is_floating_point:
            raise InvalidInput(f"Agent: vector is {observation.dtype}, expected a floating dtype; try vector.float()")
        if not c.vector and observation.dtype != torch.uint8:
            raise InvalidInput(f"Agent: frames are {observation.dtype}, expected torch.uint8 with values from 0 to 255")
        if not reward.dtype.is_floating_point:
            raise InvalidInput(f"Agent: reward is {reward.dtype}, expected a floating dtype; try reward.float()")
        check_device("Agent", name, observation, "the model", self.value.weight)
        check_device("Agent", "reward", reward, name, observation)
        check_reset("Agent", reset, size["B"], size["T"], observation)


def _check(config: AgentConfig) -> None:
    """A config that cannot be built, in one line."""
    if not isinstance(config, AgentConfig):
        raise InvalidInput(f"Agent: its config is a {type(config).__name__}, expected an AgentConfig; rfwp.build takes any")
    if config.vector < 0:
        raise InvalidInput(f"Agent: vector={config.vector}; use the size of an observation, or 0 for frames")
    for field, known in (("stem", StemName), ("init", AgentInit)):
        if getattr(config, field) not in get_args(known):
            raise unknown(field, getattr(config, field), get_args(known))
    for name in ("actions", "features", "frames", "pixels"):
        if getattr(config, name) < 1:
            raise InvalidInput(f"Agent: {name}={getattr(config, name)}; use at least 1")
    if not config.channels or min(config.channels) < 1:
        raise InvalidInput(f"Agent: channels={config.channels}; give one positive number for each section of the stem")
