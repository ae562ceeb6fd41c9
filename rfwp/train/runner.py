"""A run in its folder: what every training loop shares. Steps in epochs, checkpoints that lose nothing, the best one tested.

An epoch is what lies between two validations. What a step is, how a model is validated and tested, and what else a
checkpoint has to hold, the loops say: `rfwp.train.loop` for sets of sequences, `rfwp.lm.loop` for running text.
"""

import dataclasses
import math
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch
from torch import Tensor

from rfwp.config import LanguageRunConfig, RunConfig, to_dict
from rfwp.environment import environment, now
from rfwp.errors import InvalidFile, InvalidInput, RFWPError
from rfwp.train import checkpoint
from rfwp.train.checkpoint import writing
from rfwp.train.distributed import join
from rfwp.train.folder import RunFolder
from rfwp.train.hooks import Counted, Hooks
from rfwp.train.log import Log, Moment
from rfwp.train.model import build
from rfwp.train.optim import make_optimiser
from rfwp.train.progress import Best, Progress
from rfwp.train.random import derived, generator_states, restore_generators
from rfwp.train.result import Result
from rfwp.train.signals import StopSignals
from rfwp.train.speed import Speed, find_device
from rfwp.train.store import Store
from rfwp.version import __version__

CHECK_EVERY = 50
"""Steps between two looks at the losses: each look waits for the device."""
SAVE_SECONDS = 20.0
"""No checkpoint at the end of an epoch if there was one so shortly before: that costs a good part of a short epoch on a GPU."""
SAVE = 1
"""The wish for a checkpoint; larger wishes are numbers of signals, so the strongest wish is the largest."""


class Diverged(RFWPError, ArithmeticError):
    """The loss or the weights are no longer finite numbers."""


class Runner(Hooks):
    """Trains one run in one folder; a run that is there already is resumed, a finished one gives its result."""

    def __init__(
        self,
        config: Any,
        folder: str | Path,
        device: str | torch.device,
        log: Log | None,
        save_minutes: float,
        speed: Speed | None,
    ):
        if not save_minutes >= 0:
            raise InvalidInput(f"save_minutes={save_minutes}; use 0 for a checkpoint after every step, or more")
        self.config: RunConfig | LanguageRunConfig = config
        self.folder, self.save_minutes = RunFolder(Path(folder)), save_minutes
        self.folder.check(config)
        self.world, self.speed = join(find_device(device)), speed or Speed()
        self.sharded = self.speed.shard and self.world.size > 1
        # of a model that is parted only the first process holds all weights, for a moment
        self.model = build(config, empty=self.sharded and not self.world.first)
        self.log = log or Log()
        self.progress = Progress()
        self.best: Best | None = None
        self._pending: list[tuple[int, Counted, Tensor]] = []
        self._score: float | None = None

    def _prepare(self, fingerprint: str, commit: str, lengths: int = 1) -> None:
        """With the data known: the model on its device, the optimiser, and how fast to go. `lengths`: of batches."""
        self.fingerprint = fingerprint
        self.folder.check(self.config, fingerprint)
        self.region, self.graph = self.speed.resolve(self.world, lengths)
        kind = self._place_model()
        self.optimiser = make_optimiser(self.model, self.config.train)
        about = {"rfwp": __version__, "model": to_dict(self.config.model)}
        self.store = kind(self.folder.path, self.model, self.optimiser, self.world, about, self._warn)
        # now and not at the end, when the files may be those of another commit
        self.environment = environment(self.world.device, commit)

    def _place_model(self) -> type[Store]:
        """On its device, whole or this process's part of it; what keeps its checkpoints comes back."""
        # imported here because it brings all of PyTorch's sharding
        if self.speed.checkpoint_blocks:
            from rfwp.train.sharded import checkpoint_blocks

            checkpoint_blocks(self.model)
        if not self.sharded:
            self.model.to(self.world.device)
            return Store
        from rfwp.train.sharded import shard
        from rfwp.train.sharded_store import ShardedStore

        shard(self.model, self.world)
        return ShardedStore

    def _reduce(self) -> Callable[[], None] | None:
        """Adds up the gradients of all processes; those of a model in parts come added up."""
        if self.world.size == 1 or self.sharded:
            return None
        return lambda: self.world.sum_gradients(self.model.parameters())

    # --- A run ---

    def run(self) -> Result:
        """Train to the end, or until a signal; then test the best checkpoint."""
        if self.folder.finished:
            return self.folder.result()
        if not self.world.first:
            # the first one makes the folder
            self.world.wait()
            return self._run()
        with self.folder.locked():
            self._create()
            self.world.wait()
            return self._run()

    def _create(self) -> None:
        self.folder.create(self.config, self.fingerprint)

    def _run(self) -> Result:
        self._resume()
        # nobody writes before everybody has read
        self.world.wait()
        self.step = self._make_step()
        # torchrun passes a signal on that the processes may have had already
        with StopSignals(leave_at_second=self.world.size == 1) as self._signals:
            try:
                self._start_log()
                stopped = self._train()
            finally:
                self.log.end()
        if stopped in ("SIGINT", "SIGTERM"):
            return self._result({}, stopped)
        return self._finish(stopped)

    def _train(self) -> str | None:
        """Why it stopped before the last epoch, or None."""
        self._clock = self._saved = self._shown = time.monotonic()
        while not self._ended():
            wish = self._steps()
            if not wish:
                self._validate()
                wish = self._save_epoch()
            if wish > SAVE:
                return self._stopped_by(wish)
        return None if self.progress.epoch >= self.epochs else "patience"

    def _ended(self) -> bool:
        return self.progress.epoch >= self.epochs or not self._patient()

    def _steps(self) -> int:
        """The rest of the epoch; the number of a signal that came, or 0."""
        progress = self.progress
        steps = self._begin_epoch()
        self.model.train()
        # the checkpoint before is no part of the time of these steps
        self._lap()
        for n in range(progress.step, steps):
            self._pending.append((n, *self._take(n)))
            progress.step = n + 1
            if len(self._pending) >= CHECK_EVERY or self._time_to_show():
                self._look()
                self.log.moment(self._moment())
            if wish := self.world.agree(self._wish(60 * self.save_minutes), progress.step, steps):
                self._look()
                self._save_last()
                self._lap()
                if wish > SAVE:
                    return wish
        self._look()
        return 0

    def _validate(self) -> None:
        """Close the epoch: validation, its record, the checkpoint if it is the best so far."""
        progress = self.progress
        valid = self._validated()
        self._lap()
        moment = self._moment()
        record = {
            "epoch": progress.epoch + 1,
            **self._more_of_record(),
            "loss": progress.loss / max(1, progress.targets),
            "valid": valid,
            "tokens_per_s": moment.tokens_per_s,
            "seconds": progress.epoch_seconds,
        }
        if self.world.first:
            self.folder.add_record(record)
        self.progress = Progress(epoch=progress.epoch + 1, seconds=progress.seconds)
        self._score = valid[self.score]
        if self._is_best(valid):
            self.best = Best(self.progress.epoch, self._score, valid)
            # never later than `last`: epochs between the two are trained again, and none of them is better than this one
            self._check_finite()
            self.store.save_best(self._state(), self._beside_weights())
        assert self.best is not None
        if self.world.first:
            with writing(self.folder.path / "tensorboard"):
                self.log.epoch(record, dataclasses.replace(moment, score=self._score, best=self.best.score))

    def _is_best(self, valid: dict[str, float]) -> bool:
        """By the score; of two equal ones, such as two zeros, by the other metrics in their order."""
        if self.best is None:
            return True
        sign = 1 if self.higher_is_better else -1
        names = [self.score, *(name for name in valid if name != self.score)]
        new, old = ([sign * metrics[name] for name in names] for metrics in (valid, self.best.valid))
        return new > old

    def _finish(self, stopped: str | None) -> Result:
        """Test the best checkpoint, once."""
        self.world.wait()
        self._set_best(self.store.load_best())
        if self.best is None:
            raise InvalidFile(f"{self.folder} has no best checkpoint any more; delete the folder and train again")
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
        where, records = self.environment, self.folder.records()
        return Result(
            config=self.config,
            seed=self.config.train.seed,
            metrics=metrics,
            valid=self.best.valid if self.best else {},
            best_epoch=self.best.epoch if self.best else 0,
            epochs=self.progress.epoch,
            seconds=round(self.progress.seconds, 3),
            tokens_per_s=round(statistics.median([r["tokens_per_s"] for r in records] or [0.0]), 1),
            parameters=sum(p.numel() for p in self.model.parameters()),
            device=where["device"],
            commit=where["commit"],
            dirty=where["dirty"],
            torch=where["torch"],
            rfwp=where["rfwp"],
            time=now(),
            curve=tuple((r.get("step", r["epoch"]), r["loss"], r["valid"][self.score]) for r in records),
            stopped=stopped,
            **self._details(),
        )

    # --- Losses and time ---

    def _look(self) -> None:
        """Read the losses of the steps since the last look, and stop if one of them is not finite."""
        if self._pending:
            losses = self.world.sum(torch.stack([loss for _, _, loss in self._pending])).tolist()
            for (step, batch, _), loss in zip(self._pending, losses, strict=True):
                if not math.isfinite(loss):
                    self._diverged(f"the loss is {loss}", self.progress.epoch, step)
                self.progress.loss += loss * batch.targets
                self.progress.targets += batch.targets
                self.progress.tokens += batch.tokens
            self._pending.clear()
        self.progress.train_seconds += self._lap()
        self._shown = time.monotonic()

    def _lap(self) -> float:
        """Seconds since the last lap, added to those of the epoch and the run."""
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        self.progress.epoch_seconds += lap
        self.progress.seconds += lap
        return lap

    def _time_to_show(self) -> bool:
        # several processes look together, so they cannot go by their own clocks
        return self.log.live and self.world.size == 1 and time.monotonic() - self._shown > 1

    def _moment(self) -> Moment:
        progress, epochs = self.progress, self.epochs
        done = progress.epoch + progress.step / self.steps
        return Moment(
            epoch=progress.epoch + 1,
            epochs=epochs,
            step=progress.step,
            steps=self.steps,
            loss=progress.loss / max(1, progress.targets),
            tokens_per_s=round(progress.tokens / max(progress.train_seconds, 1e-9), 1),
            seconds_left=progress.seconds / done * max(0.0, epochs - done) if done else None,
            score=self._score,
            best=self.best.score if self.best else None,
        )

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
        return wish

    def _save_last(self) -> None:
        """What goes on from here needs, of all processes."""
        self._check_finite()
        self.store.save_last(self._state(), generator_states(self.world) | self._more_state())
        self._saved = time.monotonic()

    def _check_finite(self) -> None:
        """Weights that are not finite are never saved."""
        if not self.store.finite():
            # the last step: at step 0 that of the epoch before
            epoch, step = divmod(self.progress.epoch * self.steps + self.progress.step - 1, self.steps)
            self._diverged("weights are not finite", epoch, step)

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
        """Go on from the last whole checkpoint, or begin."""
        found = self.store.load_last()
        seed = derived(self.config.train.seed, "dropout", self.world.rank)
        restore_generators(found.tensors if found else {}, self.world, seed)
        if found is not None:
            self.progress, self._score = Progress(**found.state["progress"]), found.state["score"]
            self._restore_more(found.tensors)
        self._set_best(self.store.best())
        if self.world.first:
            self.folder.keep_records(self.progress.epoch)

    def _set_best(self, state: dict[str, Any] | None) -> None:
        """The best is what best/ says. It may be some epochs ahead: they are trained again and come to the same."""
        self.best = Best(**state["best"]) if state else None

    def _diverged(self, what: str, epoch: int, step: int) -> NoReturn:
        """Keep the batch, and say what to try. Checkpoints stay as they are."""
        message = f"{what} in {self._place(epoch, step)}"
        if self.world.first:
            path = self.folder.path / "nan-batch.safetensors"
            tensors = {name: tensor.cpu().contiguous() for name, tensor in self._batch(epoch, step).items()}
            checkpoint.replace_file(path, safetensors.torch.save(tensors, metadata={"epoch": str(epoch), "step": str(step)}))
            message += f"; its batch is in {path}, earlier checkpoints are untouched"
        raise Diverged(f"{message}; try a lower train.lr, a train.clip such as 0.1, or train.precision=fp32")

    # --- Words ---

    def _say(self, line: str) -> None:
        if self.world.first:
            self.log.say(line)

    def _warn(self, line: str) -> None:
        if self.world.first:
            self.log.warn(line)

    def _start_log(self) -> None:
        if not self.world.first:
            self.log = Log()
            return
        progress, train = self.progress, self.config.train
        size = sum(p.numel() for p in self.model.parameters())
        how = ", ".join(
            [f"{size:,} parameters", str(self.world.device), train.precision]
            + ["compiled blocks"] * (self.region != "no")
            + ["CUDA graphs"] * self.graph
            + [f"{self.world.size} processes" + ", each with a part of the weights" * self.sharded] * (self.world.size > 1)
        )
        self._say(f"{self.config.preset or 'run'}, seed {train.seed} ({how}) -> {self.folder}")
        if self.speed.shard and not self.sharded:
            self._say("one process keeps the model whole: --shard parts it under torchrun --nproc-per-node N")
        if progress.epoch or progress.step:
            self._say(f"resumed {self._after()}")
        with writing(self.folder.path / "tensorboard"):
            self.log.start(self.folder.path, self.epochs, self._more_of_record().get("step", progress.epoch))

    def _stopped_by(self, number: int) -> str:
        name = signal.Signals(number).name
        self._say(f"stopped by {name} {self._where()}, saved; go on with: rfwp train --resume {self.folder}")
        return name
