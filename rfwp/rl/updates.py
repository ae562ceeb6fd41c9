"""The learner's updates one after another, on a stream of their own: started here, done while somebody else goes on."""

import torch
from torch import Tensor

from rfwp.rl.learner import Learner
from rfwp.rl.loss import ImpalaLoss
from rfwp.rl.unroll import Unroll
from rfwp.train.step import WARM_UP


class Updates:
    """`start` an update from what `batch` holds; once `finish` gives its metrics, the weights are new and `batch` is free.

    On a GPU `start` returns at once. With `record` the first updates are ordinary ones; then gradients are one CUDA graph
    and clipping and RMSProp another: between the two, several processes add up their gradients.
    On the CPU an update is done when `start` returns.
    """

    def __init__(self, learner: Learner, batch: Unroll, *, record: bool = False):
        self.learner, self.batch, self.record = learner, batch, record
        self.device, self.running = learner.device, False
        gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if gpu else None
        # blocking: whoever waits leaves its core to the environments
        self._done = torch.cuda.Event(blocking=True) if gpu else None
        # in memory that the device can write to while nobody waits
        self._numbers = torch.empty(len(ImpalaLoss._fields) + 1, pin_memory=gpu)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        self._warm = 0
        self._lr = 0.0

    def start(self) -> None:
        """After everything that the current stream has been given so far."""
        assert not self.running
        self.running = True
        if self.stream is None or self._done is None:
            self._update()
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._update()
            self._done.record()

    def wait(self) -> None:
        """Until the update under way is done; it counts once it is finished."""
        if self._done is not None:
            self._done.synchronize()

    def finish(self, wait: bool = False) -> dict[str, float] | None:
        """The metrics of the update under way, if there is one and it is done or waited for. It counts from then on."""
        if not self.running:
            return None
        if self._done is not None and not self._done.query():
            if not wait:
                return None
            self.wait()
        self.running = False
        metrics = self.learner.metrics(self._numbers.tolist(), self._lr)
        self.learner.count(self.batch.steps)
        return metrics

    def _update(self) -> None:
        self._lr = self.learner.set_rate()
        if self.record and self._graphs is None and self._warm >= WARM_UP:
            self._record()
        if self._graphs is None:
            self._warm += 1
            self.learner.optimiser.zero_grad(set_to_none=True)
            parts = self._gradients()
            self._reduce()
            self._numbers.copy_(self._step(parts), non_blocking=True)
            return
        gradients, step = self._graphs
        gradients.replay()
        self._reduce()
        step.replay()
        self._numbers.copy_(self._recorded, non_blocking=True)

    def _record(self) -> None:
        assert self.stream is not None
        # gradients must be allocated while recording, so that replays find them
        self.learner.optimiser.zero_grad(set_to_none=True)
        pool = torch.cuda.graph_pool_handle()
        gradients, step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(gradients, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
            parts = self._gradients()
        with torch.cuda.graph(step, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
            self._recorded = self._step(parts)
        # what the first recording gives to the second must stay where it is
        self._kept = parts
        self._graphs = gradients, step

    def _gradients(self) -> Tensor:
        return self.learner.gradients(self.batch)

    def _reduce(self) -> None:
        if self.learner.reduce is not None:
            self.learner.reduce()

    def _step(self, parts: Tensor) -> Tensor:
        norm = self.learner.clip()
        self.learner.optimiser.step()
        return torch.cat((parts, norm.unsqueeze(0)))
