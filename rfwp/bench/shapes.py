"""The shapes that are timed: the paper's tasks, and larger ones that peers are measured on."""

import re
from dataclasses import asdict, dataclass, replace

from rfwp.errors import InvalidInput, unknown


@dataclass(frozen=True)
class OpShape:
    """Batch, time, heads, head size."""

    B: int
    T: int
    H: int
    d: int

    def __str__(self) -> str:
        return f"{self.B}x{self.T}x{self.H}x{self.d}"

    @property
    def tokens(self) -> int:
        return self.B * self.T

    @property
    def sizes(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class ModelShape:
    """A model of blocks and the batch that it trains on."""

    B: int
    T: int
    layers: int
    width: int
    heads: int
    ff: int
    dropout: float = 0.1
    vocabulary: int = 0
    """Words of a language model; 0: one of the algorithmic tasks, with a tiny vocabulary."""
    cutoffs: tuple[int, ...] = ()
    """Cluster boundaries of its adaptive softmax."""

    @property
    def tokens(self) -> int:
        return self.B * self.T

    @property
    def sizes(self) -> dict[str, int]:
        sizes = {name: size for name, size in asdict(self).items() if name not in ("dropout", "cutoffs")}
        return sizes if self.vocabulary else {name: size for name, size in sizes.items() if name != "vocabulary"}


OP_SHAPES = {
    "code": OpShape(64, 450, 16, 16),
    "lm": OpShape(96, 256, 8, 16),
    "thin": OpShape(64, 450, 8, 16),
    "listops": OpShape(64, 190, 16, 16),
    "listops-10": OpShape(64, 98, 16, 16),
    "wide": OpShape(32, 1024, 8, 64),
    "long": OpShape(8, 4096, 8, 128),
    "scaling": OpShape(4, 2048, 8, 64),
    "quick": OpShape(2, 33, 2, 16),
}
MODEL_SHAPES = {
    "code": ModelShape(64, 450, layers=4, width=256, heads=16, ff=1024),
    "thin": ModelShape(64, 450, layers=8, width=128, heads=8, ff=256),
    "listops": ModelShape(64, 190, layers=4, width=256, heads=16, ff=1024),
    "listops-10": ModelShape(64, 98, layers=4, width=256, heads=16, ff=1024),
    "lm": ModelShape(96, 256, layers=16, width=128, heads=8, ff=2048),
    "lm-vocabulary": ModelShape(
        96, 256, layers=16, width=128, heads=8, ff=2048, vocabulary=267_735, cutoffs=(20_000, 40_000, 200_000)
    ),
    "lm-quick": ModelShape(2, 33, layers=2, width=32, heads=2, ff=64, vocabulary=300, cutoffs=(50, 100)),
    "quick": ModelShape(2, 33, layers=2, width=32, heads=2, ff=64),
}
RANGES = {
    "T": tuple(2**n for n in range(8, 17)),
    "B": (1, 4, 16, 64, 256),
    "d": (8, 16, 32, 64, 128),
}
QUICK_RANGES = {"T": (16, 32, 64), "B": (1, 2, 4), "d": (8, 16)}


def op_shape(name: str) -> OpShape:
    """By name, or by sizes: 64x450x16x16."""
    if name in OP_SHAPES:
        return OP_SHAPES[name]
    if re.fullmatch(r"\d+(x\d+)*", name):
        sizes = [int(size) for size in name.split("x")]
        if len(sizes) != 4 or min(sizes) < 1:
            raise InvalidInput(f"shape '{name}' is not B x T x H x d with four positive sizes; try 64x450x16x16")
        return OpShape(*sizes)
    raise unknown("shape", name, OP_SHAPES)


def model_shape(name: str) -> ModelShape:
    if name not in MODEL_SHAPES:
        raise unknown("shape", name, MODEL_SHAPES)
    return MODEL_SHAPES[name]


def scaled(shape: OpShape, size: str, quick: bool) -> list[OpShape]:
    """The same shape with one size over its range."""
    return [replace(shape, **{size: value}) for value in (QUICK_RANGES if quick else RANGES)[size]]
