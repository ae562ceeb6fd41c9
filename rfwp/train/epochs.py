"""Runs of models of sequences: steps in epochs, checkpoints that lose nothing, the best one tested.

An epoch is what lies between two validations. What a step is, how a model is validated and tested, and what else a
checkpoint has to hold, the loops say: `rfwp.train.loop` for sets of sequences, `rfwp.lm.loop` for running text.
"""

import dataclasses
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Unpack

from rfwp.config import PLACES, LanguageRunConfig, RunConfig
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.train.checkpoint import Loaded, NoneWhole, replace_tensors
from rfwp.train.folder import RunFolder
from rfwp.train.hooks import Hooks
from rfwp.train.meter import Meter
from rfwp.train.model import build
from rfwp.train.optim import make_optimiser
from rfwp.train.placing import place
from rfwp.train.progress import Best, Progress
from rfwp.train.random import derived, generator_states, restore_generators
from rfwp.train.result import Result
from rfwp.train.runner import Diverged, Options, Runner
from rfwp.train.speed import Speed
from rfwp.version import __version__

SAVE_SECONDS = 20.0
"""No checkpoint at the end of an epoch if there was one so shortly before: that costs a good part of a short epoch on a GPU."""
SAVE = 1
"""The wish for a checkpoint; larger wishes are numbers of signals, so the strongest wish is the largest."""


class EpochRunner(Runner[RunConfig | LanguageRunConfig, Result], Hooks):
    """Trains one model of sequences, to its last epoch or as long as it has patience; then tests the best checkpoint."""

    packed = False
    """Several sequences share a row."""

    def __init__(
        self, config: RunConfig | LanguageRunConfig, folder: str | Path, speed: Speed | None, **options: Unpack[Options]
    ):
        super().__init__(config, RunFolder(Path(folder)), **options)
        self.speed = speed or Speed()
        if self.speed.pack is True and isinstance(config, LanguageRunConfig):
            raise InvalidInput("pack=True is for sets of sequences; running text has no padding to save, leave pack on auto")
        self.sharded = self.speed.shard and self.world.size > 1
        # of a model that is parted only the first process holds all weights, for a moment
        self.model = build(config, empty=self.sharded and not self.world.first)
        self.progress = Progress()
        self.best, self._score = None, None
        self.meter = Meter(self.world)

    def _prepare(self, fingerprint: str, lengths: int = 1) -> None:
        """With the data known: the model on its device, the optimiser, and how fast to go. `lengths`: of batches."""
        self.fingerprint = fingerprint
        if (rank := self.world.first_that_differs(fingerprint)) is not None:
            raise InvalidInput(f"process {rank} reads other data or words than the first one; give all processes the same files")
        self.folder.check(self.config, fingerprint, moved=PLACES)
        self.region, self.graph = self.speed.resolve(self.world, lengths)
        kind = place(self.model, self.world, self.speed)
        self.optimiser = make_optimiser(self.model, self.config.train)
        self.store = kind(self.folder.path, self.model, self.optimiser, self.world, self._warn)

    def _reduce(self) -> Callable[[], None] | None:
        """Adds up the gradients of all processes; those of a model in parts come added up."""
        if self.world.size == 1 or self.sharded:
            return None
        return lambda: self.world.sum_gradients(self.model.parameters())

    def _create(self) -> None:
        self.folder.create(self.config, self.fingerprint)

    # --- Epochs ---

    def _train(self) -> str | None:
        self.meter.start()
        self._saved = time.monotonic()
        while not self._ended():
            wish = self._steps()
            if not wish:
                self._validate()
                wish = self._save_epoch()
            if wish > SAVE:
                name = signal.Signals(wish).name
                self._say_stopped(name, self._where())
                return name
        return None if self.progress.epoch >= self.epochs else "patience"

    def _ended(self) -> bool:
        return self.progress.epoch >= self.epochs or not self._patient()

    def _steps(self) -> int:
        """The rest of the epoch; the number of a signal that came, or 0."""
        progress = self.progress
        steps = self._begin_epoch()
        self.model.train()
        # the checkpoint before is no part of the time of these steps
        self.meter.lap(progress)
        for n in range(progress.step, steps):
            self.meter.add(n, *self._take(n))
            progress.step = n + 1
            if self.meter.due(self.log.live):
                self._look()
                self.log.moment(self._moment())
            if wish := self.world.agree(self._wish(60 * self.save_minutes), progress.step, steps):
                self._look()
                self._save_last()
                self.meter.lap(progress)
                if wish > SAVE:
                    return wish
        self._look()
        return 0

    def _look(self) -> None:
        """Read the losses of the steps since the last look, and stop if one of them is not finite."""
        if found := self.meter.look(self.progress):
            step, loss = found
            self._diverged(f"the loss is {loss}", self.progress.epoch, step)

    def _validate(self) -> None:
        """Close the epoch: validation, its record, the checkpoint if it is the best so far."""
        progress = self.progress
        valid = self._validated()
        self.meter.lap(progress)
        moment = self._moment()
        record = {
            "epoch": progress.epoch + 1,
            **self._more_of_record(),
            "loss": moment.loss,
            "valid": valid,
            "tokens_per_s": moment.tokens_per_s,
            "seconds": progress.epoch_seconds,
        }
        if left_out := self.step.left_out():
            record["left_out"] = left_out
            self._warn(f"{left_out} of the last {progress.step} steps were left out: their gradients overflowed")
            if left_out == progress.step:
                self._diverged("the gradients of all steps overflowed up to the last", progress.epoch, progress.step - 1)
        if self.world.first:
            self.folder.add_record(record)
        self.progress = Progress(epoch=progress.epoch + 1, seconds=progress.seconds)
        self._score = valid[self.score]
        if self.best is None or self.best.is_below(valid, self.score, self.higher_is_better):
            self.best = Best(self.progress.epoch, self._score, valid)
            # never later than `last`: epochs between the two are trained again, and none of them is better than this one
            self._check_finite()
            self.store.save_best(self._state(), self._beside_weights())
        if self.world.first:
            self.log.epoch(record, dataclasses.replace(moment, score=self._score, best=self.best.score))

    # --- Checkpoints ---

    def _wish(self, seconds: float) -> int:
        """A signal that came; or to save, if the last checkpoint is older than so many seconds."""
        due = time.monotonic() - self._saved > seconds
        return self._signals.wish or (SAVE if due and self.world.first else 0)

    def _save_epoch(self) -> int:
        """A checkpoint at the end of an epoch, unless there was one shortly before and more will follow. Returns the wish."""
        wish = self.world.agree(self._wish(min(SAVE_SECONDS, 60 * self.save_minutes)), step=0, last=0)
        if wish or self._ended():
            self._save_last()
            # a signal that came meanwhile; behind the last epoch nobody would ask for it again
            wish = max(wish, self.world.agree(self._signals.wish, step=0, last=0))
        return wish

    def _save_last(self) -> None:
        """What goes on from here needs, of all processes."""
        self._check_finite()
        self.store.save_last(self._state(), generator_states(self.world) | self._more_state())
        self._saved = time.monotonic()

    def _state(self) -> dict[str, Any]:
        """Counters and numbers of a checkpoint."""
        return {
            "rfwp": __version__,
            "progress": dataclasses.asdict(self.progress),
            "best": dataclasses.asdict(self.best) if self.best else None,
            "score": self._score,
            "lr": float(self.optimiser.param_groups[0]["lr"]),
        }

    def _resume(self) -> None:
        found = self.store.load_last()
        seed = derived(self.config.train.seed, "dropout", self.world.rank)
        restore_generators(found.tensors if found else {}, self.world, seed)
        if found is not None:
            self.progress, self._score = Progress(**found.state["progress"]), found.state["score"]
            self._restore_more(found.tensors)
        self._set_best(self._best_here(found))
        if self.world.first:
            self.folder.keep_records(self.progress.epoch)
        self.step = self._make_step()

    def _best_here(self, last: Loaded | None) -> dict[str, Any] | None:
        """What the best checkpoint says of itself. One that is gone or damaged is said; a run that has a last one goes on."""
        if last is None:
            return self.store.best()
        try:
            state = self.store.best()
        except NoneWhole as error:
            self._warn(f"{error.problems}; going on without it")
            return None
        known = last.state["best"]
        if known and (state is None or state["best"]["epoch"] < known["epoch"]):
            left = "none is left" if state is None else f"that of epoch {state['best']['epoch']} is left"
            self._warn(f"the best checkpoint of {self.folder}, that of epoch {known['epoch']}, is not there any more; {left}")
        return state

    def _set_best(self, state: dict[str, Any] | None) -> None:
        """The best is what best/ says. It may be some epochs ahead: they are trained again and come to the same."""
        self.best = Best(**state["best"]) if state else None

    # --- Numbers that are not finite ---

    def _check_finite(self) -> None:
        """Weights that are not finite are never saved."""
        if not self.store.finite():
            # the last step: at step 0 that of the epoch before
            epoch, step = divmod(self.progress.epoch * self.steps + self.progress.step - 1, self.steps)
            self._diverged("weights are not finite", epoch, step)

    def _diverged(self, what: str, epoch: int, step: int) -> NoReturn:
        """Keep the batch, and say what to try. Checkpoints stay as they are."""
        message = f"{what} in {self._place(epoch, step)}"
        if self.world.first:
            path = self.folder.path / "nan-batch.safetensors"
            replace_tensors(path, self._batch(epoch, step), {"epoch": str(epoch), "step": str(step)})
            message += f"; its batch is in {path}, earlier checkpoints are untouched"
        raise Diverged(f"{message}; try a lower train.lr, a train.clip such as 0.1, or train.precision=fp32")

    # --- The beginning and the end ---

    def _introduce(self) -> None:
        progress, train = self.progress, self.config.train
        how = ", ".join(
            [f"{self.parameters:,} parameters", str(self.world.device), train.precision]
            + ["compiled blocks"] * (self.region != "no")
            + ["CUDA graphs"] * self.graph
            + ["packed"] * self.packed
            + [f"{self.world.size} processes" + ", each with a part of the weights" * self.sharded] * (self.world.size > 1)
        )
        self._say(f"{self.config.preset or 'run'}, seed {train.seed} ({how}) -> {self.folder}")
        if self.speed.shard and not self.sharded:
            self._say("one process keeps the model whole: --shard parts it under torchrun --nproc-per-node N")
        if progress.epoch or progress.step:
            self._say(f"resumed {self._after()}")
        self._start_log(self.epochs, self._more_of_record().get("step", progress.epoch))

    def _finish(self, stopped: str | None) -> Result:
        """Test the best checkpoint, once; not if a signal came, after which the run can go on."""
        if stopped in ("SIGINT", "SIGTERM"):
            return self._result({}, stopped)
        self.world.wait()
        self._set_best(self.store.load_best())
        if self.best is None:
            raise InvalidFile(f"{self.folder} has no best checkpoint any more; train again in another folder")
        try:
            test, valid = self._tested()
        finally:
            self.log.end()
        result = dataclasses.replace(self._result(test, stopped), valid=valid)
        if self.world.first:
            self.folder.write_result(result)
        self.world.wait()
        return result

    def _result(self, metrics: dict[str, float], stopped: str | None) -> Result:
        records = self.folder.records()
        return Result(
            seed=self.config.train.seed,
            metrics=metrics,
            valid=self.best.valid if self.best else {},
            best_epoch=self.best.epoch if self.best else 0,
            epochs=self.progress.epoch,
            seconds=round(self.progress.seconds, 3),
            tokens_per_s=round(statistics.median([r["tokens_per_s"] for r in records] or [0.0]), 1),
            curve=tuple((r.get("step", r["epoch"]), r["loss"], r["valid"][self.score]) for r in records),
            stopped=stopped,
            **self._origin(),
            **self._details(),
        )
