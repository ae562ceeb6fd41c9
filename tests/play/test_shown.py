"""Which models the page can show, and what it says of those that it cannot."""

import json

import pytest

import rfwp
from rfwp.config import BlocksConfig, CodeExecutionConfig, FWPConfig, RunConfig, SequenceConfig, TrainConfig, to_dict
from rfwp.errors import InvalidFile, InvalidInput, UnknownName
from rfwp.play.shown import load_all
from rfwp.tasks import load_task
from rfwp.train import Trainer
from rfwp.train.log import Log
from tests.play.small import save


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one epoch on a few programs."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    task = load_task(CodeExecutionConfig(2, 4, "true", train=8, valid=4, test=4), tmp_path_factory.mktemp("cache"))
    core = BlocksConfig(FWPConfig(), width=8, layers=1, heads=2, ff=8)
    config = RunConfig(SequenceConfig(len(task.source), len(task.target), core, 8), task.config, TrainConfig(epochs=1, batch=4))
    Trainer(config, folder, device="cpu", task=task, log=Log()).run()
    return folder


def test_run_is_shown_with_its_own_task(run):
    (shown,) = load_all([str(run)]).values()
    assert (shown.name, shown.kind) == ("tiny", "code-execution")
    assert (shown.task.config.variables, shown.task.config.semantics) == (2, "true")
    assert not shown.model.training
    best = rfwp.load(run / "best")
    assert all(bool((p == q).all()) for p, q in zip(shown.model.parameters(), best.parameters(), strict=True))


def test_checkpoint_of_a_run_has_the_runs_name(run):
    assert list(load_all([str(run / "best"), str(run)])) == ["tiny", "tiny-2"]


def test_saved_model_shows_its_task_by_its_vocabularies(tmp_path):
    arguments = [save(tmp_path / "a", "code-execution-3/rdn"), save(tmp_path / "b", "listops-15/delta-net")]
    a, b = load_all(arguments).values()
    assert (a.task.config.variables, a.task.config.semantics) == (3, "authors")
    assert b.kind == "listops"


def test_semantics_can_be_chosen(tmp_path, run):
    arguments = [save(tmp_path / "a", "code-execution-3/rdn"), str(run)]
    assert [shown.task.config.semantics for shown in load_all(arguments, "authors").values()] == ["authors", "authors"]
    with pytest.raises(UnknownName, match="unknown semantics 'tru'; did you mean 'true'"):
        load_all(arguments, "tru")


@pytest.mark.parametrize(
    ("preset", "changes", "said"),
    [
        ("code-execution-3/lstm", {"core.hidden": 8, "embedding": 8}, "has none: its layers are LSTMCore"),
        ("code-execution-3/transformer", {}, "has none: its layers are Attention"),
        ("listops-10/rdn", {"inputs": 15}, "reads 15 symbols and says 10: neither code execution nor ListOps"),
        ("atari/rdn", {}, "holds an agent but not its game; give the folder of its run"),
    ],
)
def test_other_models_are_refused_in_one_line(tmp_path, preset, changes, said):
    rfwp.build(preset, **changes).save_pretrained(tmp_path / "m")
    with pytest.raises(InvalidInput, match=said) as error:
        load_all([str(tmp_path / "m")])
    assert "\n" not in str(error.value)


def test_run_without_checkpoint_is_refused(tmp_path, run):
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(InvalidFile, match="has no checkpoint yet"):
        load_all([str(tmp_path)])


def test_run_of_another_task_is_refused(tmp_path, run):
    data = json.loads((run / "config.json").read_text())
    data["run"]["task"] = {"kind": "files", "folder": "somewhere"}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match="is a run of kind Files; play shows runs of code execution, ListOps"):
        load_all([str(tmp_path)])


def test_run_of_another_version_is_refused_in_one_line(tmp_path, run):
    data = json.loads((run / "config.json").read_text())
    data["run"]["model"] = to_dict(SequenceConfig(3, 3)) | {"later": 1}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(InvalidFile, match=r"config\.json: unknown field") as error:
        load_all([str(tmp_path)])
    assert "\n" not in str(error.value)


def test_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidFile, match="nowhere"):
        load_all([str(tmp_path / "nowhere")])
