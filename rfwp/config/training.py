"""How a model is trained: on sequences, on text, and as an agent."""

from dataclasses import dataclass
from typing import Literal

Recipe = Literal["paper", "short"]
"""How an agent is trained; see rfwp.presets.RECIPES."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained: Adam, one validation an epoch, the best checkpoint tested at the end."""

    epochs: int = 200
    batch: int = 64
    """Sequences a step, over all processes."""
    accumulate: int = 1
    """Parts that a batch is cut into, one after another; the gradient is that of the whole batch."""
    lr: float = 3e-4
    decay: float = 0.0
    """The last share of the training, from 0 to 1, over which the learning rate falls linearly to 0; 0: it never falls."""
    beta1: float = 0.9
    beta2: float = 0.995
    eps: float = 1e-9
    clip: float | None = None
    """Largest norm of the gradient; None: not clipped."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    patience: int | None = None
    """Stop after this many epochs without a better validation score; None: never."""
    seed: int = 1
    """Of the weights, the dropout and the order of the data."""


@dataclass(frozen=True)
class LanguageTrainConfig:
    """How a language model is trained: Adam with warm-up and cosine, validation every so many steps, the best one tested."""

    steps: int = 500_000
    streams: int = 96
    """Streams that the text is cut into, read side by side, over all processes."""
    accumulate: int = 1
    """Parts that a batch is cut into, one after another; the gradient is that of the whole batch."""
    lr: float = 2.5e-4
    warmup: int = 2_000
    """Steps in which the learning rate rises from 0; then it follows a cosine to 0 at the last step."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float | None = 0.25
    """Largest norm of the gradient; None: not clipped."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    carry: bool = False
    """Each segment begins with the state that the one before has left, without its gradient; False: with a zero state."""
    validate_every: int = 4_000
    """Steps between validations."""
    test_stride: int = 1
    """Words that the windows of the last test are apart; 1 is the paper's way. With carry there are no windows."""
    seed: int = 1
    """Of the weights and the dropout."""


@dataclass(frozen=True)
class ImpalaConfig:
    """How an agent is trained: IMPALA with the paper's settings, V-trace actor-critic with losses summed over an unroll."""

    steps: int = 200_000_000
    """Agent steps of the whole training, over which the learning rate goes to 0."""
    unroll: int = 50
    """Steps that an unroll has, and backpropagation through time goes back."""
    batch: int = 32
    """Unrolls an update, over all processes."""
    mode: Literal["free", "lockstep"] = "free"
    """free: environments go on while the learner works; lockstep: in turns, the same for the same seed."""
    environments: int = 96
    """How many are played in free mode, over all processes; lockstep has one for each unroll of a batch."""
    groups: int = 2
    """Groups of environments in each process in free mode: one is played while actions are chosen for another."""
    max_lag: int = 4
    """Updates that the weights of any action may be behind those that learn from it, in free mode; actors wait for it."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    lag: int = 0
    """Updates that the actor's weights are behind the learner's in lockstep training: 0 or 1."""
    discount: float = 0.99
    reward_clip: float = 1.0
    """The learner's rewards are cut to [-reward_clip, reward_clip]."""
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    rho_bar: float = 1.0
    """Largest importance weight in the temporal differences of V-trace."""
    c_bar: float = 1.0
    """Largest importance weight that carries a difference one step back."""
    pg_rho_bar: float = 1.0
    """Largest importance weight of a policy gradient."""
    trace: float = 1.0
    """V-trace's lambda: 1 carries differences back in full, 0 not at all."""
    lr: float = 6e-4
    warm_up: int = 0
    """Updates over which the learning rate rises: RMSProp's first steps are else up to 1 / sqrt(1 - alpha) times lr in size."""
    alpha: float = 0.99
    """RMSProp's smoothing."""
    eps: float = 0.01
    """RMSProp's divisor is sqrt(mean square) + eps."""
    momentum: float = 0.0
    clip: float = 40.0
    """Largest norm of the gradient."""
    seed: int = 1
    """Of the environments and the sampled actions."""
