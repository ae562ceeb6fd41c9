"""Curves for TensorBoard."""

import threading
from collections.abc import Mapping
from pathlib import Path


class Curves:
    """Numbers by name and step, in a folder; an ImportError if there is no TensorBoard, an OSError if they cannot be written."""

    def __init__(self, folder: Path, done: int):
        from torch.utils.tensorboard import SummaryWriter

        self._hook = threading.excepthook
        threading.excepthook = self._heard_by_writer
        try:
            # what an interrupted run wrote after its checkpoint is not shown
            self._writer = SummaryWriter(str(folder), purge_step=done + 1)
        except BaseException:
            threading.excepthook = self._hook
            raise

    def add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._hook

    def _heard_by_writer(self, failure: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own. What fails there, the next `add` raises: no traceback beside it."""
        if not type(failure.thread).__module__.startswith("tensorboard"):
            self._hook(failure)
