"""A language model's run is decided by its config: however often it is stopped, it ends with the same bits."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import torch

import rfwp
from rfwp.config import AttentionConfig, TextConfig, replace
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.layers.state import detach
from rfwp.lm.evaluate import on_device, paper_perplexity
from rfwp.lm.saved import load_language_model
from rfwp.lm.schedule import learning_rate
from rfwp.lm.segments import Segments, unlearned_words
from rfwp.models.perplexity import sliding_window
from rfwp.tasks.wikitext import Text
from rfwp.tasks.words import Words
from rfwp.train import Diverged, Result, Speed
from rfwp.train.model import build
from rfwp.train.progress import Best
from tests.lm.tiny import VOCABULARY, tiny_config, trainer
from tests.train.test_loop import assert_same_run
from tests.train.tiny import before_call, weights

CARRY = {"train.carry": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """Runs that nobody stopped, without and with carried state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFWP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        home = tmp_path_factory.mktemp("whole")
        return {carry: (home / str(carry), trainer(home / str(carry), config(text, carry)).run()) for carry in (False, True)}


def config(text, carry):
    return tiny_config(text, "delta_rnn", **{"train.carry": carry})


def test_training_learns_and_the_best_is_tested(tmp_path, text):
    settings = {"train.steps": 120, "train.validate_every": 40, "train.lr": 3e-2, "train.warmup": 5}
    result = trainer(tmp_path, tiny_config(text, "delta_net", dropout=0.0, **settings)).run()
    assert [step for step, _, _ in result.curve] == [40, 80, 120]
    assert result.valid["perplexity while training"] == min(score for _, _, score in result.curve) < 0.6 * VOCABULARY
    assert result.metrics["perplexity"] < 0.75 * VOCABULARY
    model, words = load_language_model(tmp_path)
    found = sliding_window(model, on_device(Text(result.config.text, words=words).tokens("test"), torch.device("cpu")), 6, 3)
    assert found.perplexity == result.metrics["perplexity"]
    assert rfwp.load(tmp_path / "best").config == model.config
    assert Words.load(tmp_path / "best/words.txt").symbols == Words.load(tmp_path / "words.txt").symbols == words.symbols


@pytest.mark.parametrize("carry", [False, True])
def test_training_is_plain_adam_over_the_streams_in_order(tmp_path, text, carry):
    """Nothing of the loop: segments cut by hand, also the shorter last one of a pass, and the state carried by hand."""
    here = tiny_config(text, "delta_rnn", dropout=0.0, **{"train.carry": carry})
    trainer(tmp_path, here).run()
    model, tokens = build(here), on_device(Text(here.text).tokens("train"), torch.device("cpu"))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.999), eps=1e-8)
    length = len(tokens) // 4
    streams = tokens[: 4 * length].view(4, length)
    starts = list(range(0, length - 1, 6))
    assert (length - 1) % 6
    state = None
    for step in range(24):
        start = starts[step % len(starts)]
        state = state if carry and start else None
        end = min(start + 6, length - 1)
        loss, state = model.loss(streams[:, start:end], streams[:, start + 1 : end + 1], state)
        state = detach(state)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for group in adam.param_groups:
            group["lr"] = learning_rate(here.train, step)
        adam.step()
    trained = safetensors.torch.load(weights(tmp_path))
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trained[name], expected, atol=1e-5, rtol=0)


def test_the_learning_rate_rises_and_follows_a_cosine_to_zero(text):
    train = tiny_config(text, **{"train.steps": 100, "train.warmup": 10, "train.lr": 1.0}).train
    rates = [learning_rate(train, step) for step in range(100)]
    assert rates[:10] == pytest.approx([(t + 1) / 10 for t in range(10)])
    assert rates[49] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)


# of 24 steps: the first, one in the first interval, its last, the start of the second pass, the last one
@pytest.mark.parametrize("step", [1, 7, 10, 20, 24])
@pytest.mark.parametrize("carry", [False, True])
def test_a_stopped_run_resumes_bit_identically(tmp_path, monkeypatch, text, whole, carry, step):
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "get", before_call(step, Segments.get, lambda: signal.raise_signal(signal.SIGTERM)))
        stopped = trainer(tmp_path, config(text, carry)).run()
    assert (stopped.stopped, stopped.metrics) == ("SIGTERM", {})
    result = trainer(tmp_path, config(text, carry)).run()
    assert_same_run(tmp_path, whole[carry][0])
    assert result.metrics == whole[carry][1].metrics


def test_checkpoints_at_every_step_change_nothing(tmp_path, text, whole):
    trainer(tmp_path, config(text, True), save_minutes=0).run()
    assert_same_run(tmp_path, whole[True][0])


def test_carried_state_matters_and_is_saved(whole):
    cut, carried = (safetensors.torch.load_file(whole[carry][0] / "last/optimiser.safetensors") for carry in (False, True))
    assert not [name for name in cut if name.startswith("carried.")]
    states = [tensor for name, tensor in carried.items() if name.startswith("carried.")]
    assert states
    assert all(len(tensor) == 4 and tensor.any() for tensor in states)


def test_a_finished_run_gives_its_result(text, whole):
    folder, result = whole[True]
    assert Result.from_json(json.loads((folder / "result.json").read_text())) == result
    assert trainer(folder, config(text, True)).run() == result
    assert result.words == len(Text(result.config.text).tokens("train"))


def test_accumulation_equals_the_whole_batch(tmp_path, text):
    for parts in (1, 2):
        changes = {"train.accumulate": parts, "train.carry": True}
        trainer(tmp_path / str(parts), tiny_config(text, dropout=0.0, **changes)).run()
    ours, whole = (safetensors.torch.load(weights(tmp_path / str(parts))) for parts in (2, 1))
    for name in whole:
        torch.testing.assert_close(ours[name], whole[name], atol=1e-5, rtol=0)


def test_computing_blocks_twice_changes_nothing_but_memory(tmp_path, text, whole):
    trainer(tmp_path, config(text, True), speed=Speed(checkpoint_blocks=True)).run()
    assert_same_run(tmp_path, whole[True][0])


def test_two_processes_train_as_one_does_and_one_goes_on_with_their_run(tmp_path, text):
    """The two are stopped after 20 of 24 steps, in the second pass, and one trains the rest."""
    one, two = tmp_path / "one", tmp_path / "two"
    expected = trainer(one, tiny_config(text, dropout=0.0, **CARRY)).run()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = [*torchrun, "-m", "tests.lm.tiny", str(two), str(text), "train.carry=1"]
    done = subprocess.run(run, env=os.environ | {"OMP_NUM_THREADS": "1", "STOP_AT": "13"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((two / "last/state.json").read_text())["progress"]["epoch"] == 1
    assert not (two / "result.json").exists()
    result = trainer(two, tiny_config(text, dropout=0.0, **CARRY)).run()
    for ours, wanted in zip(result.curve, expected.curve, strict=True):
        assert ours == pytest.approx(wanted, rel=1e-4)
    assert result.metrics["perplexity"] == pytest.approx(expected.metrics["perplexity"], rel=1e-4)
    found, wanted = (safetensors.torch.load_file(folder / "last/optimiser.safetensors") for folder in (two, one))
    for name in wanted:
        if not name.startswith("rng."):
            torch.testing.assert_close(found[name], wanted[name], atol=1e-4, rtol=0)


def test_the_capacity_bounds_the_rare_words_of_every_step(text):
    segments = Segments(Text(tiny_config(text).text).batches("train", 4))
    counts = []
    for step in range(len(segments)):
        for part in segments.get(step)[1].chunk(2):
            counts.append([int(((part >= low) & (part < high)).sum()) for low, high in ((6, 12), (12, 20))])
    assert segments.capacity((6, 12, 20), parts=2) == tuple(map(max, zip(*counts, strict=True)))


def test_a_longer_context_is_used_by_carried_state_only(whole, text):
    """In full context the first word of a segment is predicted with what went before; in windows it is not."""
    model, words = load_language_model(whole[True][0])
    tokens = on_device(Text(config(text, True).text, words=words).tokens("valid"), torch.device("cpu"))
    full = paper_perplexity(model, tokens, config(text, True))
    cut = sliding_window(model, tokens, 6, 6)
    assert full.count == cut.count
    assert full.sums[0] != cut.sums[0]


# --- What goes wrong ---


def test_a_loss_that_is_not_finite_stops_with_its_step_and_batch(tmp_path, monkeypatch, text):
    run = trainer(tmp_path, tiny_config(text), save_minutes=0)
    spoil = before_call(15, Segments.get, lambda: next(run.model.parameters()).data.fill_(math.nan))
    monkeypatch.setattr(Segments, "get", spoil)
    with pytest.raises(Diverged, match=r"in step 15; its batch is in .*nan-batch.safetensors.*lower train.lr"):
        run.run()
    batch = safetensors.torch.load_file(tmp_path / "nan-batch.safetensors")
    tokens, targets, _ = run.segments.get(14)
    assert torch.equal(batch["tokens"], tokens)
    assert torch.equal(batch["targets"], targets)
    assert all(t.isfinite().all() for t in safetensors.torch.load(weights(tmp_path)).values())


def test_a_perplexity_beyond_all_numbers_stops_the_run(tmp_path, text):
    def spread(module):
        for weight in module.parameters():
            weight.data.mul_(1e4)

    run = trainer(tmp_path, tiny_config(text))
    spread(run.model)
    with pytest.raises(Diverged, match=r"the loss on the validation text is \d+"):
        run._validated()
    run.best = Best(1, 2.0, {"perplexity": 2.0})
    with pytest.raises(Diverged, match=r"the loss on the valid text is \d+.*; the run is saved"):
        run._tested()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.steps": 0}, "train.steps=0; use at least 1"),
        ({"train.warmup": 24}, "train.warmup=24 of 24 steps; use 0 to 23"),
        ({"train.lr": -1.0}, "train.lr=-1.0; use a positive number"),
        ({"train.test_stride": 7}, "train.test_stride=7 leaves out words between windows of 6; use at most 6"),
        ({"text.segment": 0}, "text.segment=0; use at least 1"),
        ({"train.accumulate": 3}, "by 1 processes in 3 parts; use a multiple of 3"),
        ({"train.streams": 400}, "the text has 447 tokens, too few for 400 streams of 6 steps"),
        ({"model.inputs": 21, "model.outputs": 21}, "but the vocabulary has 20 words; use 20 for both"),
    ],
)
def test_settings_that_cannot_work_are_named(tmp_path, text, changes, message):
    with pytest.raises(InvalidInput, match=re.escape(message)):
        trainer(tmp_path / "run", tiny_config(text, **changes))
    assert not (tmp_path / "run").exists()


def test_attention_cannot_carry_a_state_that_grows(tmp_path, text):
    attention = replace(tiny_config(text, **CARRY), {"model.core.layer": AttentionConfig()})
    with pytest.raises(InvalidInput, match=re.escape("that of attention grows; use train.carry=false")):
        trainer(tmp_path / "run", attention)


def test_another_vocabulary_than_the_run_has_is_one_line(tmp_path, text):
    config = tiny_config(text, **{"train.steps": 4, "train.validate_every": 4})
    trainer(tmp_path, config).run()
    (tmp_path / "words.txt").write_text("".join(f"x{n}\n" for n in range(18)) + "<eos>\n<unk>\n")
    with pytest.raises(InvalidFile, match=r"trained with another vocabulary \(20 words\) than this text has \(20\): word 0"):
        trainer(tmp_path, config)


def begun(tmp_path, text):
    """A text and the config of a run on it, in `run`."""
    copy = tmp_path / "text"
    shutil.copytree(text, copy)
    config = tiny_config(copy, **{"train.steps": 4, "train.validate_every": 4})
    trainer(tmp_path / "run", config).run()
    return copy, config


def test_a_text_with_more_words_than_the_run_has_is_another_vocabulary(tmp_path, text):
    copy, config = begun(tmp_path, text)
    with open(copy / "train.txt", "a") as file:
        file.write("new\n")
    with pytest.raises(InvalidFile, match=r"trained with another vocabulary \(20 words\) than this text has \(21\)"):
        trainer(tmp_path / "run", config)


def test_a_text_that_has_moved_can_be_named_in_the_config(tmp_path, text):
    copy, config = begun(tmp_path, text)
    copy.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidFile, match=r"\(the text of the run; if it has moved, name its place: --text, --held-out"):
        trainer(tmp_path / "run", config)
    trainer(tmp_path / "run", replace(config, {"text.source": str(tmp_path / "elsewhere")}))


@pytest.mark.parametrize(
    ("train", "valid", "vocabulary", "lines"),
    [
        ("a b a", "a c b a", "", ["20.00% of the valid text is <unk>, which the training text never has"]),
        ("a b <unk>", "a c b a", "", []),
        ("a b a", "a b", "", []),
        (
            "a b a",
            "a b",
            "5 a\n3 b",
            ["75% of the training text is <unk>: the vocabulary lacks these words; has it one word a line?"],
        ),
        ("a b a a a a a", "c", "a\n<unk>", []),
    ],
)
def test_words_that_no_model_can_learn_are_said(tmp_path, train, valid, vocabulary, lines):
    for name, content in (("train", train), ("valid", valid), ("test", train), ("words", vocabulary)):
        (tmp_path / f"{name}.txt").write_text(content + "\n")
    words = str(tmp_path / "words.txt") if vocabulary else ""
    found = unlearned_words(Text(TextConfig(str(tmp_path), vocabulary=words)))
    assert [line[: len(start)] for line, start in zip(found, lines, strict=True)] == lines


def test_a_run_says_that_its_vocabulary_is_of_another_text(tmp_path, text, caplog):
    (tmp_path / "words.txt").write_text("<eos>\n<unk>\n" + "".join(f"x{n}\n" for n in range(18)))
    trainer(tmp_path / "run", tiny_config(text, **{"text.vocabulary": str(tmp_path / "words.txt")}))
    assert caplog.text.count("of the training text is <unk>: the vocabulary lacks these words") == 1


def test_another_text_under_the_same_config_is_noticed(tmp_path, text):
    copy = tmp_path / "text"
    shutil.copytree(text, copy)
    trainer(tmp_path / "run", tiny_config(copy, **{"train.steps": 4, "train.validate_every": 4})).run()
    words = (copy / "train.txt").read_text().split(" ")
    (copy / "train.txt").write_text(" ".join([words[1], words[0], *words[2:]]))
    with pytest.raises((InvalidInput, InvalidFile), match=r"other data|another vocabulary"):
        trainer(tmp_path / "run", tiny_config(copy, **{"train.steps": 4, "train.validate_every": 4}))
