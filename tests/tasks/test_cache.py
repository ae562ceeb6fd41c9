"""Generated data on disk: written whole, checked when read, never needed."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rfwp.config import CodeExecutionConfig, ListOpsConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.tasks import SPLITS, load_task

CONFIG = ListOpsConfig(depth=3, train=40, valid=10, test=10)


def splits(config=CONFIG, cache=None):
    task = load_task(config, cache)
    return [tensor for name in SPLITS for tensor in vars(task.split(name)).values()]


def same(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def only_file(folder):
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("config", [CONFIG, CodeExecutionConfig(train=5, valid=2, test=2)])
def test_second_start_reads_what_the_first_wrote(config, tmp_path, monkeypatch, caplog):
    first = splits(config, tmp_path / "new" / "folder")
    monkeypatch.setattr(type(load_task(config)), "generate", None)
    assert same(first, splits(config, tmp_path / "new" / "folder"))
    assert not caplog.records


def test_every_config_has_a_file_of_its_own(tmp_path):
    for seed in (1, 2):
        splits(ListOpsConfig(depth=3, train=40, valid=10, test=10, data_seed=seed), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_generated_before_it_is_asked_for(tmp_path):
    task = load_task(CONFIG, tmp_path)
    task.truth("[MIN 1 2]")
    assert not list(tmp_path.iterdir())


def flip_a_bit(content: bytes) -> bytes:
    at = len(content) // 3
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"\x00" * 100],
    ids=["bit", "half", "empty", "zeros"],
)
def test_a_damaged_file_is_noticed_and_made_again(damage, tmp_path, caplog):
    expected = splits(cache=tmp_path)
    path = only_file(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    assert same(splits(cache=tmp_path), expected)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "is damaged" in record.getMessage()
    assert "\n" not in record.getMessage()
    caplog.clear()
    assert same(splits(cache=tmp_path), expected)
    assert not caplog.records


def test_a_file_of_another_config_is_noticed(tmp_path, caplog):
    other = ListOpsConfig(depth=4, train=40, valid=10, test=10)
    splits(other, tmp_path)
    content = only_file(tmp_path).read_bytes()
    only_file(tmp_path).unlink()
    expected = splits(cache=tmp_path)
    only_file(tmp_path).write_bytes(content)
    assert same(splits(cache=tmp_path), expected)
    assert "made for another config" in caplog.text


def test_an_unwritable_folder_means_data_in_memory(tmp_path, caplog):
    expected = splits(cache=tmp_path / "good")
    (tmp_path / "file").write_text("no folder")
    assert same(splits(cache=tmp_path / "file" / "below"), expected)
    assert len(caplog.records) == 1
    assert "generated data stay in memory" in caplog.text


def test_a_full_disk_means_data_in_memory_and_leaves_no_rest(tmp_path, caplog, monkeypatch):
    def full(source, destination):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    splits(cache=tmp_path)
    assert not list(tmp_path.iterdir())
    assert "No space left" in caplog.text


def test_many_readers_and_writers_at_once_see_whole_files_only(tmp_path, caplog):
    expected = splits(cache=tmp_path / "alone")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: splits(cache=tmp_path / "shared"), range(24)))
    assert all(same(result, expected) for result in results)
    assert not caplog.records
    only_file(tmp_path / "shared")


def test_several_processes_with_several_hash_seeds_make_the_same_data(tmp_path):
    code = """
import hashlib, sys
from pathlib import Path
from rfwp.config import CodeExecutionConfig
from rfwp.tasks import load_task
task = load_task(CodeExecutionConfig(train=300, valid=10, test=10), Path(sys.argv[1]))
print(hashlib.sha256(task.split("train").targets.numpy().tobytes()).hexdigest())
"""
    start = [sys.executable, "-W", "error", "-c", code]
    runs = [
        subprocess.Popen(
            [*start, str(tmp_path / folder)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, folder in enumerate(["shared", "shared", "alone"])
    ]
    outputs = [run.communicate() for run in runs]
    assert all(errors == "" for _, errors in outputs), outputs
    assert len({digest for digest, _ in outputs}) == 1
    only_file(tmp_path / "shared")


def test_the_folder_comes_from_the_environment_or_home(tmp_path, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "chosen"))
    splits()
    only_file(tmp_path / "chosen")
    monkeypatch.setenv("RFWP_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    splits()
    only_file(tmp_path / "home" / ".cache" / "rfwp" / "data")


def test_without_a_home_the_user_is_told_what_to_set(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("RFWP_CACHE", raising=False)
    with pytest.raises(InvalidInput, match="set RFWP_CACHE to a folder"):
        splits()


def test_unknown_splits_and_tasks_are_named(tmp_path):
    with pytest.raises(UnknownName, match=r"unknown split 'tests'; did you mean 'test'\?"):
        load_task(CONFIG, tmp_path).split("tests")
    with pytest.raises(InvalidInput, match="str is not a task"):
        load_task("listops")
