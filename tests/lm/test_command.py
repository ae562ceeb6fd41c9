"""`rfwp train` and `rfwp eval` on running text, as a user sees them."""

import json
import re
import signal
import sys

import pytest

from rfwp.lm.changes import fit_vocabulary
from rfwp.lm.segments import Segments
from rfwp.presets import WIKI_28M, language_run
from rfwp.tasks.wikitext import Text
from tests.lm.tiny import SIZES, VOCABULARY, tiny_config, trainer
from tests.test_cli import run
from tests.train.tiny import before_call

SMALL = {
    "model.core.layers": 1,
    "model.core.width": 8,
    "model.core.heads": 2,
    "model.core.ff": 8,
    "model.embedding": 8,
    "text.segment": 6,
    "train.streams": 4,
    "train.lr": 1e-2,
    "train.test_stride": 3,
}
SET = ["--set", *(f"{name}={value}" for name, value in SMALL.items())]
DEVICE = ["--device", "cpu"]


def train(capsys, *arguments):
    return run(capsys, "train", *map(str, arguments), *DEVICE)


def test_train_stop_resume_and_evaluate_your_own_text(capsys, tmp_path, monkeypatch, text):
    folder = tmp_path / "run"
    command = ["lm/rdn", "--text", text, "--steps", 20, "--out", folder, *SET]
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "get", before_call(7, Segments.get, lambda: signal.raise_signal(signal.SIGINT)))
        code, out, _ = train(capsys, *command)
    assert code == 130
    assert f"stopped by SIGINT after step 7/20, saved; go on with: rfwp train --resume {folder}" in out
    code, out, err = train(capsys, "--resume", folder)
    assert (code, err) == (0, "")
    assert "resumed after step 7/20" in out
    assert [
        line.split(":")[0] for line in out.splitlines() if re.match("step .*: loss .*, perplexity .*, .* tokens/s", line)
    ] == [
        "step 8/20",
        "step 12/20",
        "step 16/20",
        "step 20/20",
    ]
    result = json.loads((folder / "result.json").read_text())
    saved = result["config"]
    assert saved["model"]["inputs"] == saved["model"]["outputs"] == VOCABULARY
    assert saved["model"]["cutoffs"] == [VOCABULARY - 1]
    assert (saved["train"]["warmup"], saved["train"]["validate_every"]) == (2, 4)
    assert saved["model"]["window"] == 6

    code, out, _ = run(capsys, "eval", str(folder), *DEVICE)
    assert code == 0
    lines = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert lines["perplexity"].strip() == f"{result['metrics']['perplexity']:.2f}"
    assert lines["protocol"].strip() == "windows of 6 words, 3 apart"
    for kind in ("png", "svg"):
        assert (folder / f"loss-by-position-test.{kind}").stat().st_size > 1000
    kept = json.loads((folder / "eval-test.json").read_text())
    assert kept["perplexity"] == result["metrics"]["perplexity"]
    assert [len(values) for values in kept["by_position"].values()] == [6]

    code, out, _ = run(capsys, "eval", str(folder), "--split", "valid", "--stride", "1", *DEVICE)
    assert code == 0
    assert f"words {len(Text(tiny_config(text).text).tokens('valid')) - 1}" in " ".join(out.split())
    code, _, err = train(capsys, *command)
    assert code == 2
    assert "holds this run already, finished (perplexity " in err


def test_a_carried_run_is_evaluated_in_full_context_and_shows_what_that_buys(capsys, tmp_path, text):
    result = trainer(tmp_path, tiny_config(text, **{"train.carry": True, "train.steps": 10})).run()
    code, out, _ = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 0
    assert "full context" in out
    assert f"{result.metrics['perplexity']:.2f}" in out
    assert len(json.loads((tmp_path / "eval-test.json").read_text())["by_position"]) == 2
    code, _, err = run(capsys, "eval", str(tmp_path), "--stride", "2", *DEVICE)
    assert code == 2
    assert "this run carries its state" in err


def test_what_cannot_be_kept_has_been_shown(capsys, tmp_path, monkeypatch, text):
    result = trainer(tmp_path, tiny_config(text, **{"train.steps": 4})).run()
    (tmp_path / "eval-test.json").mkdir()
    code, out, err = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 2
    assert f"{result.metrics['perplexity']:.2f}" in out
    assert "eval-test.json" in err
    assert len(err.splitlines()) == 1


def test_without_matplotlib_the_numbers_are_kept(capsys, tmp_path, monkeypatch, text):
    trainer(tmp_path, tiny_config(text, **{"train.steps": 4})).run()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 0
    assert "perplexity" in out
    assert 'a plot needs: pip install "rfwp[report]"' in err
    assert (tmp_path / "eval-test.json").exists()


@pytest.mark.parametrize(
    ("name", "carry"), [("lm/rdn", False), ("lm-full-context/rdn", True), ("wiki-28m/rdn-full-context", True)]
)
def test_presets_are_whole_runs(name, carry):
    config = language_run(name)
    train = config.train
    assert (train.steps, train.streams, train.lr, train.warmup, train.clip) == (500_000, 96, 2.5e-4, 2_000, 0.25)
    assert (train.beta1, train.beta2, train.eps, config.text.segment) == (0.9, 0.999, 1e-8, 256)
    assert (train.carry, config.preset, config.text.source) == (carry, name, "wikitext-103")
    assert len(WIKI_28M) == 10


def test_cutoffs_follow_the_vocabulary():
    base = language_run("lm/rdn")
    assert fit_vocabulary(base, 267_735) == base
    for words, cutoffs in ((33_278, (20_000,)), (50_000, (20_000, 40_000)), (300, (299,))):
        model = fit_vocabulary(base, words).model
        assert (model.inputs, model.outputs, model.cutoffs) == (words, words, cutoffs)
    assert fit_vocabulary(base, 33_278, keep={"model.cutoffs"}).model.cutoffs == base.model.cutoffs


def test_validation_and_test_may_lie_elsewhere(capsys, tmp_path, text):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, names in ((here, ["train"]), (there, ["valid", "test"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.txt").write_bytes((text / f"{name}.txt").read_bytes())
    (tmp_path / "vocabulary").write_text("".join(f"w{n} {n}\n" for n in range(18)))
    run_folder = tmp_path / "run"
    both = ["--text", here, "--held-out", there, "--vocabulary", tmp_path / "vocabulary"]
    code, _, err = train(capsys, "lm/delta-net", *both, "--steps", 4, "--out", run_folder, *SET)
    assert code == 0, err
    assert (run_folder / "words.txt").read_text().split()[:3] == ["<eos>", "<unk>", "w0"]
    assert SIZES["train"] < json.loads((run_folder / "result.json").read_text())["words"]


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lm/rdn", "--epochs", 3], "--epochs is for tasks of sequences; a language model is trained for --steps N"),
        (["lm/rdn", "--text", "wikitext-3"], "unknown text or folder 'wikitext-3'; did you mean 'wikitext-103'?"),
        (["lm/rdn", "--text", "{tmp}"], "{tmp} has no text for train; looked for wiki.train.tokens"),
        (["lm/rdn", "--text", "{text}", "--steps", 0], "train.steps=0; use at least 1"),
        (["lm/rdn", "--text", "{text}", "--steps", 9, "--set", "train.steps=8"], "train.steps is there twice"),
        (["lm/rdn", "--text", "{text}", "--steps", 9], "the text has 447 tokens, too few for 96 streams of 256 steps"),
        (["lm/rdn", "--text", "{text}", "--vocabulary", "{tmp}/none"], "{tmp}/none cannot be read: No such file"),
        (["lm/rdm", "--text", "{text}"], "unknown preset 'lm/rdm'; did you mean 'lm/rdn'?"),
        (["wiki-28m/rdm", "--text", "{text}"], "unknown preset 'wiki-28m/rdm'; did you mean 'wiki-28m/rdn'?"),
        (["lm/rdn", "--set", "model.cutoffs=10"], "cutoffs: expected a list such as [10,20], saw 10"),
        (["listops-10/rdn", "--steps", 3], "--steps, --text, --held-out and --vocabulary are for language models"),
        (["lm/rdn", "--text", "{tmp}/empty"], "train.txt is empty; give a file with at least one word"),
        (["lm/rdn", "--text", "{tmp}/binary"], "train.txt: line 2 has a zero byte"),
        (["lm/rdn", "--text", "{tmp}/latin"], "train.txt: line 3 is not UTF-8 (byte 0xe9)"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, text, arguments, message):
    write(tmp_path / "empty/train.txt", b"\n\n")
    write(tmp_path / "binary/train.txt", b"a\nb\0c\n")
    write(tmp_path / "latin/train.txt", b"a\nb\ncaf\xe9\n")
    names = {"tmp": str(tmp_path), "text": str(text)}
    folder = tmp_path / "run"
    code, _, err = train(capsys, *(str(a).format(**names) for a in arguments), "--out", folder)
    assert code == 2
    assert err.startswith("rfwp: ")
    assert message.format(**names) in err
    assert len(err.splitlines()) == 1
    assert not folder.exists()


def test_options_of_other_runs_are_named(capsys, tmp_path, text):
    trainer(tmp_path, tiny_config(text, **{"train.steps": 4})).run()
    for flags, message in ((["--input", "a b"], "rfwp generate"), (["--stride", "7"], "use 1 to 6")):
        code, _, err = run(capsys, "eval", str(tmp_path), *flags, *DEVICE)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
