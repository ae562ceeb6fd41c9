"""The training loop over running text: steps in the order of the text, pass after pass, a validation every so many steps.

Nothing here is drawn at random but weights and dropout: the data of a step follow from its number. With carried state each
segment goes on from what the one before has left, whose tensors are part of the checkpoint; each pass begins at zero.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from rfwp.config import LanguageRunConfig
from rfwp.errors import InvalidInput
from rfwp.layers.state import flat
from rfwp.lm.carried import Carried
from rfwp.lm.evaluate import on_device, paper_perplexity, quick_perplexity
from rfwp.lm.saved import text_of_run
from rfwp.lm.schedule import check_language_training, learning_rate
from rfwp.lm.segments import Segments, fingerprint, unlearned_words
from rfwp.models import SequenceModel
from rfwp.models.adaptive import TiedAdaptive
from rfwp.models.pretrained import WORDS
from rfwp.tasks.wikitext import Text
from rfwp.tasks.words import Words, check_same_vocabulary
from rfwp.train.epochs import EpochRunner
from rfwp.train.log import Moment
from rfwp.train.progress import Counted
from rfwp.train.runner import Diverged, Options
from rfwp.train.speed import Speed
from rfwp.train.step import TrainStep


class LanguageTrainer(EpochRunner):
    """Trains one run in one folder; a run that is there already is resumed, a finished one gives its result.

    >>> result = LanguageTrainer(language_run("lm/rdn"), Path("runs/rdn")).run()
    >>> result.metrics["perplexity"]

    `text`: in place of the one that the config says. `speed`: `rfwp.train.Speed`. The other options: `rfwp.train.Options`.
    """

    config: LanguageRunConfig
    score, higher_is_better = "perplexity", False

    def __init__(
        self,
        config: LanguageRunConfig,
        folder: str | Path,
        *,
        text: Text | None = None,
        speed: Speed | None = None,
        **options: Unpack[Options],
    ):
        check_language_training(config)
        super().__init__(config, folder, speed, **options)
        if text is None:
            text = text_of_run(config) if self.folder.used else Text(config.text)
        self.text = text
        self._check_words()
        train, world = config.train, self.world
        if train.streams % (shares := world.size * train.accumulate):
            shared = f"cannot be shared equally by {world.size} processes in {train.accumulate} parts"
            raise InvalidInput(f"train.streams={train.streams} {shared}; use a multiple of {shares}")
        self.segments = Segments(self.text.batches("train", train.streams, world.rank, world.size), world.size)
        self._prepare(fingerprint(self.text))
        for line in unlearned_words(self.text):
            self._warn(line)
        self.steps = train.validate_every
        self.valid = on_device(self.text.tokens("valid"), world.device)
        self.carried = Carried(self.model, train.streams // world.size, world.device) if train.carry else None

    def _check_words(self) -> None:
        """A run that is here has the same words, and the model has a place for each."""
        model, words = self.config.model, self.text.words
        if (saved := self.folder.path / WORDS).exists():
            check_same_vocabulary(Words.load(saved), words)
        if (model.inputs, model.outputs) != (len(words), len(words)):
            seen = f"model.inputs={model.inputs} and model.outputs={model.outputs}, but the vocabulary has {len(words)} words"
            raise InvalidInput(f"{seen}; use {len(words)} for both")

    def _create(self) -> None:
        super()._create()
        if not (self.folder.path / WORDS).exists():
            self.text.words.save(self.folder.path / WORDS)

    # --- Steps ---

    @property
    def epochs(self) -> int:
        return -(-self.config.train.steps // self.steps)

    def _make_step(self) -> TrainStep:
        world, train = self.world, self.config.train
        capacity = None
        # on the CPU the number of rare words can be asked for at each step, and nothing has to be filled up
        if world.device.type == "cuda" and isinstance(self.model.head, TiedAdaptive):
            capacity = self.segments.capacity(self.model.head.ends, train.accumulate)
        # all parts of all processes have as many targets
        shares, carried = world.size * train.accumulate, self.carried

        def share(model: SequenceModel, tokens: Tensor, targets: Tensor) -> Tensor:
            return model.loss(tokens, targets, capacity=capacity)[0] / shares

        def share_and_state(
            model: SequenceModel, tokens: Tensor, targets: Tensor, state: tuple[Tensor, ...]
        ) -> tuple[Tensor, list[Tensor]]:
            assert carried is not None
            loss, new = model.loss(tokens, targets, carried.nested(state), capacity=capacity)
            return loss / shares, flat(new)

        return TrainStep(
            self.model,
            self.optimiser,
            share if carried is None else share_and_state,
            precision=train.precision,
            compile=self.region,
            cuda_graph=self.graph,
            clip=train.clip,
            parts=train.accumulate,
            reduce=self._reduce(),
            state=None if carried is None else carried.tensors,
        )

    def _begin_epoch(self) -> int:
        return min(self.steps, self.config.train.steps - self.progress.epoch * self.steps)

    def _take(self, n: int) -> tuple[Counted, Tensor]:
        step = self._number(self.progress.epoch, n)
        tokens, targets, count = self.segments.get(step)
        if self.world.device.type == "cuda":
            # the host goes on while the batch waits for the device
            tokens, targets = tokens.pin_memory(), targets.pin_memory()
        if self.carried is not None and self.segments.starts_pass(step):
            self.carried.clear()
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config.train, step)
        return count, self.step(tokens, targets)

    def _number(self, epoch: int, step: int) -> int:
        """Of a step in the whole run, from 0."""
        return min(epoch * self.steps + step, self.config.train.steps)

    # --- Validation and test ---

    def _validated(self) -> dict[str, float]:
        found = quick_perplexity(self.model, self.valid, self.config, self.world)
        if not math.isfinite(found.perplexity):
            self._diverged(f"the loss on the validation text is {found.mean}", self.progress.epoch, self.progress.step - 1)
        return {self.score: found.perplexity}

    def _tested(self) -> tuple[dict[str, float], dict[str, float]]:
        """Both by the protocol of the test; the validations of the training have a name of their own."""
        assert self.best is not None
        found = {}
        for name in ("valid", "test"):
            tokens = on_device(self.text.tokens(name), self.world.device)

            def show(done: int, total: int, name: str = name) -> None:
                self.log.working(f"testing on {name}", done, total)

            stride = self.config.train.test_stride
            reached = paper_perplexity(self.model, tokens, self.config, stride, show, self.world)
            if not math.isfinite(reached.perplexity):
                raise Diverged(f"the loss on the {name} text is {reached.mean}; the run is saved, rfwp eval tests it again")
            found[name] = {self.score: reached.perplexity}
        return found["test"], found["valid"] | {"perplexity while training": self.best.score}

    # --- What the run says and keeps ---

    def _batch(self, epoch: int, step: int) -> dict[str, Tensor]:
        train = self.config.train
        tokens, targets, _ = Segments(self.text.batches("train", train.streams)).get(self._number(epoch, step))
        return {"tokens": tokens, "targets": targets}

    def _place(self, epoch: int, step: int) -> str:
        return f"step {min(self._number(epoch, step) + 1, self.config.train.steps)}"

    def _after(self) -> str:
        return f"after step {self._done}/{self.config.train.steps}"

    def _where(self) -> str:
        return self._after()

    @property
    def _done(self) -> int:
        return self._number(self.progress.epoch, self.progress.step)

    def _moment(self) -> Moment:
        steps = self.config.train.steps
        left = self.progress.seconds / self._done * (steps - self._done) if self._done else None
        moment = super()._moment()
        return dataclasses.replace(moment, epochs=0, step=self._done, steps=steps, seconds_left=left, metric=self.score)

    def _more_of_record(self) -> dict[str, Any]:
        return {"step": self._done}

    def _details(self) -> dict[str, Any]:
        return {"data": self.fingerprint, "words": len(self.text.tokens("train"))}

    def _more_state(self) -> dict[str, Tensor]:
        return {} if self.carried is None else self.carried.saved(self.world)

    def _restore_more(self, tensors: dict[str, Tensor]) -> None:
        if self.carried is not None:
            self.carried.restore(tensors, self.world)

    def _beside_weights(self) -> dict[str, bytes]:
        return {WORDS: self.text.words.content()}
