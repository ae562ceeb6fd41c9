"""Players: threads that play one group of environments each."""

import threading
from collections.abc import Callable

import torch

from rfwp.rl.unroll import Actor


class GroupPlayer(threading.Thread):
    """Calls play(actor) until that says False; `fail` gets what it raises."""

    def __init__(self, actor: Actor, play: Callable[[Actor], bool], fail: Callable[[BaseException], None]):
        # a process that ends without `close` does not wait for it
        super().__init__(name="player", daemon=True)
        self.actor, self.play, self.fail = actor, play, fail

    def run(self) -> None:
        try:
            if self.actor.device.type == "cuda":
                # every thread begins with the first one
                torch.cuda.set_device(self.actor.device)
            while self.play(self.actor):
                pass
        except BaseException as error:
            self.fail(error)
