"""What `rfwp bench` can be told. The text under a field is its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Common:
    """What all benchmarks share."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    quick: bool = False
    """Tiny sizes and few repetitions: does it run at all?"""
    seconds: float = 1.0
    """How long to repeat each measurement, at least 5 and at most 200 times."""
    threads: int | None = None
    """Threads on the CPU; if left away PyTorch's choice, and one in a quick run."""
    out: Path = Path("results/bench")
    """Folder for the JSON lines and plots."""
    commit: str = ""
    """Which code this is, where git cannot say it."""


@dataclass(frozen=True)
class OpsOptions(Common):
    """Time the ops beside nn.LSTM, PyTorch attention and, when importable, fla.

    ms: as called from Python, which takes longer than short kernels. device ms, on GPUs: the same calls, queued behind a kernel
    that waits until Python is done; - where a call itself waits for the GPU.
    """

    ops: tuple[str, ...] = ()
    """Which ops: sum delta delta_rnn delta_lstm recurrent_delta; all if left away."""
    shapes: tuple[str, ...] = ()
    """Which shapes: code lm thin listops listops-10 wide long scaling, or sizes like 64x450x16x16 (B x T x H x d)."""
    dtype: tuple[Mode, ...] = ("fp32",)
    """fp32, tf32 (float32 with TF32 tensor cores allowed) or bf16; several are timed side by side."""
    backends: tuple[str, ...] = ()
    """Which of our backends; all that can run if left away."""
    backward: bool = True
    """Forward and backward pass, or the forward pass alone."""
    graph: bool = False
    """Time replays of a CUDA graph instead of calls."""
    peers: bool = True
    """Time the others too."""
    scaling: Literal["no", "T", "B", "d"] = "no"
    """Vary one size of each shape over its range, and plot it."""


@dataclass(frozen=True)
class TrainOptions(Common):
    """Time whole training steps: forward, backward and Adam, of models in the paper's shapes."""

    shape: tuple[str, ...] = ()
    """Which shapes: code thin listops listops-10 lm, with a tiny vocabulary; lm-vocabulary: Table 1's language models with the
    267,735 words of WikiText-103; code if left away."""
    models: tuple[str, ...] = ()
    """Which models: floor linear_transformer delta_net delta_rnn rdn delta_lstm transformer lstm; with a vocabulary
    transformer linear_transformer delta_net delta_mlp delta_delta_net delta_rnn delta_lstm rdn delta_rnn_full_context
    rdn_full_context; all if left away."""
    precision: tuple[Mode, ...] = ()
    """fp32, tf32, bf16; if left away tf32 and bf16 on a GPU, fp32 on the CPU."""
    compile: tuple[Literal["auto", "no", "blocks", "lengths", "model"], ...] = ("auto",)
    """What torch.compile gets; lengths: the blocks, once for all T; auto: the blocks on a GPU, nothing on the CPU. Several are
    timed side by side."""
    graph: tuple[Literal["auto", "no", "yes"], ...] = ("auto",)
    """Replay the whole step as a CUDA graph; auto: yes on a GPU. Several are timed side by side."""
    backend: str = "auto"
    """Backend of the ops."""
    check: bool = False
    """First train a small model both ways and compare every loss with plain steps on the reference."""
    profile: bool = False
    """Show the kernels that take most of the time."""


@dataclass(frozen=True)
class RLOptions(Common):
    """Time agents that learn an Atari game: environments, choosing actions and learning, each alone and all together."""

    game: str = "pong"
    agent: tuple[str, ...] = ("rdn", "lstm")
    """Which agents: rows of the table atari, or any by its full name, such as atari-large/rdn."""
    parts: tuple[Literal["environments", "actions", "learner", "all", "gymnasium"], ...] = ()
    """What to time; gymnasium: its own vector environments in a plain loop. Everything if left away."""
    stem: Literal["auto", "deep", "shallow"] = "auto"
    """The paper's deep stem, or a shallow one; auto: deep on a GPU, shallow on the CPU."""
    precision: tuple[Mode, ...] = ()
    """fp32, tf32, bf16; if left away tf32 on a GPU, fp32 on the CPU. Several are timed one after another."""
    envs: int = 0
    """Environments; 0: 96 on a GPU, 16 on the CPU."""
    groups: tuple[int, ...] = (2,)
    """Groups of environments. Several are timed one after another."""
    batch: int = 0
    """Unrolls an update; 0: the paper's 32 on a GPU, 8 on the CPU."""
    unroll: int = 0
    """Steps of an unroll; 0: the paper's 50 on a GPU, 20 on the CPU."""
    max_lag: int = 4
    """Updates that actors may be behind; groups wait for it below (environments + those of a group) / batch."""
    emulators: int = 0
    """Cores for environments; 0: all cores but one in four."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """The order of images in the vision stem; auto: channels last on a GPU."""
    compile_stem: bool = False
    """torch.compile for the vision stem, in the whole of it."""
    side_by_side: Literal["auto", "yes", "no"] = "auto"
    """A thread for each group, in the whole of it; auto: on a GPU."""
    graph: Literal["auto", "no"] = "auto"
    """Replay actions and updates as CUDA graphs; auto: on a GPU."""
    seconds: float = 10.0
    """How long to time each part."""
    check: bool = True
    """First compare recorded actions and updates with plain ones."""


@dataclass(frozen=True)
class PlotOptions:
    """Draw a scaling run from its JSON lines, beside them, as PNG and SVG."""

    file: Path
    """The .jsonl file."""
    scaling: Literal["T", "B", "d"] = "T"
    """The size that was varied."""
