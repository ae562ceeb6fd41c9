"""Players: threads that play one group of environments each."""

import threading
from collections.abc import Callable

import torch

from rfwp.rl.rows import RowActor


class GroupPlayer(threading.Thread):
    """Calls play(actor) until that says False; `fail` gets what it raises."""

    def __init__(self, actor: RowActor, play: Callable[[RowActor], bool], fail: Callable[[BaseException], None]):
        # a process that ends without `close` does not wait for it
        super().__init__(name="player", daemon=True)
        self.actor, self.play, self.fail = actor, play, fail

    def run(self) -> None:
        try:
            if self.actor.staging.device.type == "cuda":
                # every thread begins with the first one
                torch.cuda.set_device(self.actor.staging.device)
            while self.play(self.actor):
                pass
        except BaseException as error:
            self.fail(error)
