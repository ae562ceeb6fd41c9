"""A text that has moved since a run began."""

import json
import shutil
import signal

import pytest

from rfwp.lm.segments import Segments
from tests.lm.tiny import tiny_config, trainer
from tests.test_cli import run
from tests.train.tiny import before_call, weights

DEVICE = ["--device", "cpu"]


def resume(capsys, folder, *arguments):
    return run(capsys, "train", "--resume", str(folder), *map(str, arguments), *DEVICE)


def evaluate(capsys, folder, *arguments):
    return run(capsys, "eval", str(folder), *map(str, arguments), *DEVICE)


def apart(folder, text):
    """The text in three places: training, held out, and its words."""
    for place, names in (("here", ["train"]), ("there", ["valid", "test"])):
        (folder / place).mkdir(parents=True)
        for name in names:
            shutil.copy(text / f"{name}.txt", folder / place)
    (folder / "vocabulary").write_text("<eos>\n<unk>\n" + "".join(f"w{n}\n" for n in range(18)))
    return folder


def places(folder):
    """As changes to a config."""
    return {
        "text.source": str(folder / "here"),
        "text.held_out": str(folder / "there"),
        "text.vocabulary": str(folder / "vocabulary"),
    }


def saved(folder):
    return json.loads((folder / "config.json").read_text())


def stop(folder, config, monkeypatch, at=7):
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "get", before_call(at, Segments.get, lambda: signal.raise_signal(signal.SIGTERM)))
        assert trainer(folder, config).run().stopped == "SIGTERM"


def test_a_run_whose_text_moved_ends_with_the_bits_of_one_whose_text_did_not(capsys, tmp_path, monkeypatch, text):
    old = shutil.copytree(text, tmp_path / "old")
    stop(tmp_path / "run", tiny_config(old), monkeypatch)
    new = old.rename(tmp_path / "new")
    code, out, err = resume(capsys, tmp_path / "run", "--text", new)
    assert (code, err) == (0, "")
    assert "resumed after step 7/24" in out
    result = trainer(tmp_path / "whole", tiny_config(new)).run()
    assert saved(tmp_path / "run") == saved(tmp_path / "whole")
    for name in ("last", "best"):
        assert weights(tmp_path / "run", name) == weights(tmp_path / "whole", name)
    assert json.loads((tmp_path / "run/result.json").read_text())["metrics"] == result.metrics
    assert evaluate(capsys, tmp_path / "run")[0] == 0


def test_all_three_places_may_move_and_the_next_resume_needs_no_option(capsys, tmp_path, monkeypatch, text):
    old, folder = apart(tmp_path / "old", text), tmp_path / "run"
    stop(folder, tiny_config(text, **places(old)), monkeypatch)
    new = old.rename(tmp_path / "new")
    for named in ([], ["--text", new / "here"], ["--text", new / "here", "--held-out", new / "there"]):
        code, _, err = resume(capsys, folder, *named)
        assert code == 2
        assert "(the text of the run; if it has moved, name its place: --text, --held-out, --vocabulary)" in err
        assert len(err.splitlines()) == 1
        assert str(new) not in (folder / "config.json").read_text()
    all_three = ["--text", new / "here", "--held-out", new / "there", "--vocabulary", new / "vocabulary"]
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "get", before_call(3, Segments.get, lambda: signal.raise_signal(signal.SIGTERM)))
        assert resume(capsys, folder, *all_three)[0] == 143
    assert {f"text.{name}": saved(folder)["run"]["text"][name] for name in ("source", "held_out", "vocabulary")} == places(new)
    code, out, _ = resume(capsys, folder)
    assert code == 0
    assert "resumed after step 10/24" in out
    # the words that the run keeps are its vocabulary, too
    assert (folder / "words.txt").read_bytes() == (new / "vocabulary").read_bytes()


def test_another_text_is_refused_and_nothing_is_written(capsys, tmp_path, monkeypatch, text):
    folder = tmp_path / "run"
    stop(folder, tiny_config(text), monkeypatch)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for split, said in (("train", r"another vocabulary"), ("valid", "was trained on other data than the task has now")):
        other = shutil.copytree(text, tmp_path / f"other-{split}")
        words = (other / f"{split}.txt").read_text().split(" ")
        (other / f"{split}.txt").write_text(" ".join([*words[5:], *words[:5]]))
        code, _, err = resume(capsys, folder, "--text", other)
        assert code == 2
        assert said in err
        assert len(err.splitlines()) == 1
    code, _, err = resume(capsys, folder, "--text", text, "--set", "train.lr=1")
    assert code == 2
    assert "another config: train.lr 0.01 -> 1; use another folder" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_eval_reads_the_text_at_its_new_place_and_leaves_the_run_as_it_is(capsys, tmp_path, text):
    old, folder = apart(tmp_path / "old", text), tmp_path / "run"
    result = trainer(folder, tiny_config(text, **places(old), **{"train.steps": 4})).run()
    new = old.rename(tmp_path / "new")
    config = saved(folder)
    code, _, err = evaluate(capsys, folder)
    assert code == 2
    assert "(the text of the run; if it has moved, name its place: --text, --held-out)" in err
    code, _, err = evaluate(capsys, folder, "--held-out", new / "here")
    assert code == 2
    assert err.startswith(f"rfwp: {new / 'here'} has no text for test; looked for wiki.test.tokens")
    assert "if it has moved" not in err
    code, _, err = evaluate(capsys, folder, "--held-out", new / "there")
    assert (code, err) == (0, "")
    # not in the place of the numbers of the run's own text
    assert not (folder / "eval-test.json").exists()
    kept = json.loads((folder / "eval-test-there.json").read_text())
    assert (kept["perplexity"], kept["text"]) == (result.metrics["perplexity"], str(new / "there"))
    code, _, err = evaluate(capsys, folder, "--split", "train", "--text", new / "here")
    assert (code, err) == (0, "")
    assert saved(folder) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "{new}/here"], "the test text of this run is not what was named; its place is --held-out FOLDER"),
        (["--split", "train", "--held-out", "{new}"], "the train text of this run is not what was named; its place is --text"),
        (["--data", "{new}"], "--data is for sequences with targets; a language model reads --text FOLDER"),
    ],
)
def test_a_place_that_eval_would_not_read_is_one_line(capsys, tmp_path, text, arguments, message):
    new = apart(tmp_path / "new", text)
    trainer(tmp_path / "run", tiny_config(text, **places(new), **{"train.steps": 4})).run()
    code, _, err = evaluate(capsys, tmp_path / "run", *(argument.format(new=new) for argument in arguments))
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    code, _, err = resume(capsys, tmp_path / "run", "--data", new)
    assert (code, err) == (2, "rfwp: --data is for sequences with targets; a language model reads --text FOLDER\n")
