"""What a folder says of the run in it."""

import json

import pytest

from rfwp.config import (
    AgentConfig,
    CodeExecutionConfig,
    LanguageRunConfig,
    MemoryGameConfig,
    RLRunConfig,
    RunConfig,
    SequenceConfig,
    to_dict,
)
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.rl.result import RLFolder
from rfwp.train.folder import FILES, RunFolder, read_run_config

MODEL = SequenceConfig(5, 5)
RUNS = [RunConfig(MODEL, CodeExecutionConfig()), LanguageRunConfig(MODEL), RLRunConfig(AgentConfig(), MemoryGameConfig())]


@pytest.mark.parametrize("config", RUNS, ids=lambda config: type(config).__name__)
def test_a_run_of_any_kind_says_its_config(tmp_path, config):
    folder = (RLFolder if isinstance(config, RLRunConfig) else RunFolder)(tmp_path)
    folder.create(config)
    assert read_run_config(tmp_path) == folder.config() == config


def test_a_folder_without_a_run_says_so(tmp_path):
    assert read_run_config(tmp_path) is None
    assert read_run_config(tmp_path / "nowhere") is None
    # a saved model has a config.json of its own
    (tmp_path / "config.json").write_text(json.dumps({"rfwp": "0.1.0", "model": to_dict(MODEL)}))
    assert read_run_config(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"run": to_dict(MODEL)}))
    assert read_run_config(tmp_path) is None
    with pytest.raises(InvalidFile, match="holds no run of a model of sequences; give the folder of one"):
        RunFolder(tmp_path).config()


def test_the_folder_of_several_seeds_names_them(tmp_path):
    for seed in (1, 2):
        (tmp_path / f"seed-{seed}").mkdir()
        RunFolder(tmp_path / f"seed-{seed}").create(RUNS[0])
    with pytest.raises(InvalidFile) as caught:
        RunFolder(tmp_path).config()
    assert str(caught.value).endswith(f"; give one of the runs in it: {tmp_path / 'seed-1'}, {tmp_path / 'seed-2'}")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("config", RUNS, ids=lambda config: type(config).__name__)
def test_what_looks_like_a_run_but_is_none_is_left_alone(tmp_path, config, name):
    folder = (RLFolder if isinstance(config, RLRunConfig) else RunFolder)(tmp_path)
    folder.check(config)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidInput, match=f"has {name} but no config.json, so it is the folder of no run; use another folder"):
        folder.check(config)
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_is_no_run_of_another_kind(tmp_path):
    RLFolder(tmp_path).create(RUNS[2])
    with pytest.raises(InvalidFile, match="holds no run of a model of sequences"):
        RunFolder(tmp_path).config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not readable as JSON"),
        ("[1]", "holds a list, expected an object"),
        ('{"run": 3}', r"config\.json: run: expected an object with a 'kind', saw 3"),
        ('{"run": {"kind": "rlrunn"}}', "did you mean 'rlrun'"),
    ],
)
def test_a_broken_config_is_named_in_one_line(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidFile, match=message) as error:
        read_run_config(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "notes").write_text("mine")
    folder = RunFolder(tmp_path / "notes" / "run")
    with pytest.raises(InvalidFile, match=r"cannot make the folder .*run: Not a directory; use another one"), folder.locked():
        pass
