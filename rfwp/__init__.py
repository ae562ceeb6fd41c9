"""Fast weight programmers in PyTorch."""

__version__ = "0.1.0"
