"""The models that come with rfwp: each loads by its name, and scores what its card says on programs that nobody saw."""

import importlib.util
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rfwp
from rfwp.cli import main
from rfwp.config import BlocksConfig, CodeExecutionConfig, FWPConfig, RunConfig, SequenceConfig, TrainConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.models import packaged
from rfwp.models.packaged import PRETRAINED, packaged_models
from rfwp.models.pretrained import locate
from rfwp.play.shown import load_all
from rfwp.tasks import load_task
from rfwp.train import Trainer
from rfwp.train.folder import RunFolder
from rfwp.train.log import Log

ROOT = Path(__file__).parent.parent
PAPER = "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;"
FRESH, AT_ONCE = 320, 32
SEED = 2106
"""Of the fresh data: the year and month of the paper, and not the seed of any training data."""
each_model = pytest.mark.parametrize("name", packaged_models())


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("package_pretrained", ROOT / "tools" / "package_pretrained.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_of(name):
    return RunFolder(PRETRAINED / name).result()


# --- The models ---


def test_the_model_that_play_shows_is_there():
    assert "code-execution-5" in packaged_models()


@each_model
def test_a_name_loads_the_model_of_the_run(name):
    model, result = rfwp.load(name), result_of(name)
    assert sum(p.numel() for p in model.parameters()) == result.parameters
    assert model.config == result.config.model
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@each_model
def test_score_on_fresh_data_is_that_of_the_card(name):
    """Right or wrong is a coin with the model's chance, thrown `FRESH` times here and once for each row of the test set there.

    The shares of two such counts differ by more than four standard deviations in less than one of 10,000 cases.
    """
    result = result_of(name)
    assert result.config.task.data_seed != SEED
    task = load_task(replace(result.config.task, data_seed=SEED, test=FRESH))
    fresh, model = task.generate("test"), rfwp.load(name)
    right = 0
    with torch.no_grad():
        for tokens, targets in zip(fresh.tokens.split(AT_ONCE), fresh.targets.split(AT_ONCE), strict=True):
            right += int(task.count(model(tokens.long())[0].argmax(-1), targets)[task.score][0])
    tested = result.config.task.test
    # one right and one wrong more, so that a model that is always right has some noise, too
    p = (right + result.metrics[task.score] * tested + 1) / (FRESH + tested + 2)
    noise = (p * (1 - p) * (1 / FRESH + 1 / tested)) ** 0.5
    assert abs(right / FRESH - result.metrics[task.score]) <= 4 * noise


@each_model
def test_files_are_few_small_and_without_pickle(name, monkeypatch, tool):
    def refuse(*_, **__):
        raise AssertionError("pickle")

    for module, function in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, function, refuse)
    rfwp.load(name)
    files = {file.name: file for file in (PRETRAINED / name).iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors", "result.json"}
    assert sum(file.stat().st_size for file in files.values()) < tool.MOST_BYTES
    json.loads(files["config.json"].read_text())


@each_model
def test_card_says_what_the_result_says(name, tool):
    text, result = (PRETRAINED / name / "README.md").read_text(encoding="utf-8"), result_of(name)
    assert text == tool.card(name, result)
    for score in (*result.metrics.values(), *result.valid.values()):
        assert f"{100 * score:.3f} %" in text
    assert f"{result.parameters:,} parameters" in text
    assert result.commit in text


@each_model
def test_program_of_the_card_runs(name):
    (program,) = re.findall(r"```python\n(.*?)```", (PRETRAINED / name / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(program, name, "exec"), names)
    assert names["logits"].shape == (1, len(names["program"]), len(names["task"].target))


@pytest.mark.parametrize(
    "name", [name for name in packaged_models() if isinstance(result_of(name).config.task, CodeExecutionConfig)]
)
def test_program_of_the_papers_appendix_is_executed(name):
    """On the page, with the task of its run."""
    (shown,) = load_all([name]).values()
    assert shown.task.config == result_of(name).config.task
    steps = rfwp.trace(shown.model, shown.task.encode(PAPER))
    assert shown.task.target.decode(steps.logits.argmax(-1)) == shown.task.truth(PAPER)
    assert shown.task.truth(PAPER)[-1] == "4"


def test_eval_takes_a_name_and_shows_what_the_model_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["eval", "code-execution-5", "--device", "cpu", "--input", "x = 3 ; x ++ ; print x ;"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[-1] == [";", "4", "4"]


# --- Names ---


@pytest.fixture
def small():
    return rfwp.SequenceModel(SequenceConfig(24, 26, BlocksConfig(FWPConfig(), width=8, layers=1, heads=2, ff=8), embedding=8))


@pytest.fixture
def own(tmp_path, monkeypatch, small):
    """Another package, with the model `counting` in it; and an empty folder to be in."""
    small.save_pretrained(tmp_path / "pretrained" / "counting")
    monkeypatch.setattr(packaged, "PRETRAINED", tmp_path / "pretrained")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_name_is_found_in_the_package(own, small):
    assert locate("counting") == own / "pretrained" / "counting"
    assert rfwp.load("counting").config == small.config
    assert rfwp.SequenceModel.from_pretrained("counting").config == small.config


def test_a_folder_that_is_here_wins(own, small):
    small.save_pretrained("counting")
    assert locate("counting") == Path("counting")


def test_a_path_is_never_a_name(own):
    for path in (Path("counting"), "./counting", "../pretrained/count"):
        with pytest.raises(ValueError, match="no folder"):
            locate(path)


def test_an_unknown_name_says_which_there_are(own):
    with pytest.raises(UnknownName, match="unknown folder or packaged model 'couting'; did you mean 'counting'"):
        rfwp.load("couting")
    with pytest.raises(UnknownName, match="unknown folder or packaged model 'x'; known: counting"):
        rfwp.load("x")


def test_play_without_a_model_shows_the_packaged_one_wherever_it_is_started(tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    small.save_pretrained("code-execution-5")
    (shown,) = load_all([]).values()
    assert shown.name == "code-execution-5"
    assert shown.model.config == result_of("code-execution-5").config.model


# --- Making one ---


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One epoch on a few programs."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    task = load_task(CodeExecutionConfig(2, 4, "true", train=8, valid=4, test=4), tmp_path_factory.mktemp("cache"))
    core = BlocksConfig(FWPConfig(), width=8, layers=1, heads=2, ff=8)
    model = SequenceConfig(len(task.source), len(task.target), core, 8)
    config = RunConfig(model, task.config, TrainConfig(epochs=1, batch=4), "code-execution-3/delta-net")
    Trainer(config, folder, device="cpu", task=task, log=Log()).run()
    return folder


def test_a_packaged_run_is_its_best_checkpoint(run, tool, tmp_path):
    folder = tool.package(run, "tiny", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    best, loaded = rfwp.load(run / "best"), rfwp.load(folder)
    assert all(torch.equal(p, q) for p, q in zip(best.parameters(), loaded.parameters(), strict=True))
    assert (folder / "result.json").read_bytes() == (run / "result.json").read_bytes()
    (shown,) = load_all([str(folder)]).values()
    assert shown.task.config.semantics == "true"


def test_what_cannot_be_packaged_leaves_the_earlier_one_whole(run, tool, tmp_path, monkeypatch):
    folder = tool.package(run, "tiny", tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(tool, "MOST_BYTES", 1_000)
    with pytest.raises(InvalidInput, match="the package takes at most 1,000"):
        tool.package(run, "tiny", tmp_path)
    with pytest.raises(InvalidInput, match="is not finished"):
        tool.package(run / "best", "tiny", tmp_path)
    with pytest.raises(InvalidInput, match=r"name '\.\./tiny' does not fit"):
        tool.package(run, "../tiny", tmp_path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
