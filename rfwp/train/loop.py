"""The training loop over a set of sequences: epochs in an order of their own, one validation an epoch.

A run is decided by its config alone. The order of the data comes from seed and epoch; the rest of what chance decides is in
the checkpoint. So a run that was stopped anywhere and resumed on the same device ends with the same bits, as far
as the device computes the same twice: tested on the CPU.
"""

from pathlib import Path
from typing import Unpack

from torch import Tensor

from rfwp.config import RunConfig
from rfwp.tasks import SPLITS, Task, load_task
from rfwp.train.data import Batch, Data, checked
from rfwp.train.distributed import World
from rfwp.train.epochs import EpochRunner
from rfwp.train.evaluate import evaluate
from rfwp.train.folder import fingerprint
from rfwp.train.model import check_fits, share_of_loss
from rfwp.train.optim import check_training, decayed
from rfwp.train.places import task_of_run
from rfwp.train.runner import Options
from rfwp.train.speed import Speed
from rfwp.train.step import TrainStep


class Trainer(EpochRunner):
    """Trains one run in one folder; a run that is there already is resumed, a finished one gives its result.

    >>> result = Trainer(run_config("listops-10/rdn"), Path("runs/listops")).run()
    >>> result.metrics["accuracy"]

    `task`: in place of the one that the config says. `speed`: `rfwp.train.Speed`. The other options: `rfwp.train.Options`.
    """

    config: RunConfig

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path,
        *,
        task: Task | None = None,
        speed: Speed | None = None,
        **options: Unpack[Options],
    ):
        super().__init__(config, folder, speed, **options)
        check_training(config.train)
        if task is None:
            task = task_of_run(config) if self.folder.used else load_task(config.task)
        self.task = task
        self.score = self.task.score
        splits = {name: checked(self.task.split(name), name) for name in SPLITS}
        self.train, self.valid = (Data(splits[name], self.world.device) for name in ("train", "valid"))
        self.steps = self.train.steps(config.train.batch)
        saved = self.train.saved_by_packing(config.train.seed, config.train.batch, self.world)
        self.packed = self.speed.packs(config, self.world, saved)
        self._prepare(fingerprint(splits["train"]), len({batch.shape for batch in self._epoch(0)}))
        # only now: other data than the run's, which have more symbols, are other data
        check_fits(config.model, self.task)
        self._batches: list[Batch] = []

    @property
    def epochs(self) -> int:
        return self.config.train.epochs

    def _make_step(self) -> TrainStep:
        train = self.config.train
        return TrainStep(
            self.model,
            self.optimiser,
            share_of_loss,
            precision=train.precision,
            compile=self.region,
            cuda_graph=self.graph,
            clip=train.clip,
            parts=train.accumulate,
            reduce=self._reduce(),
        )

    def _begin_epoch(self) -> int:
        self._batches = self._epoch(self.progress.epoch)
        return len(self._batches)

    def _epoch(self, epoch: int) -> list[Batch]:
        train = self.config.train
        return self.train.epoch(train.seed, epoch, train.batch, self.world, train.accumulate, self.packed)

    def _take(self, n: int) -> tuple[Batch, Tensor]:
        batch = self._batches[n]
        if self.config.train.decay:
            done = (self.progress.epoch * self.steps + n) / (self.epochs * self.steps)
            for group in self.optimiser.param_groups:
                group["lr"] = decayed(self.config.train, done)
        return batch, self.step(*self.train.get(batch))

    def _validated(self) -> dict[str, float]:
        return self._evaluated(self.valid)

    def _tested(self) -> tuple[dict[str, float], dict[str, float]]:
        assert self.best is not None
        return self._evaluated(Data(self.task.split("test"), self.world.device)), self.best.valid

    def _evaluated(self, data: Data) -> dict[str, float]:
        train = self.config.train
        return evaluate(self.model, self.task, data, train.batch, train.precision, self.world)

    def _patient(self) -> bool:
        patience = self.config.train.patience
        return patience is None or self.best is None or self.progress.epoch - self.best.epoch < patience

    def _batch(self, epoch: int, step: int) -> dict[str, Tensor]:
        train = self.config.train
        batch = self.train.epoch(train.seed, epoch, train.batch, World(device=self.world.device))[step]
        tokens, targets, _ = self.train.get(batch)
        return {"tokens": tokens, "targets": targets, "rows": batch.rows}
