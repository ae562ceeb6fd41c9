"""WikiText from the hub, with a hub and a parquet reader of paper: all but the transfer itself."""

import hashlib
import json
import sys
from types import ModuleType, SimpleNamespace

import huggingface_hub
import pytest

from rfwp.config import TextConfig
from rfwp.errors import InvalidFile, MissingExtra
from rfwp.tasks import hub
from rfwp.tasks.hub import REVISION, WIKITEXT, Part, wikitext_folder
from rfwp.tasks.wikitext import Text

ROWS = {
    "w/train-0.parquet": ["", " = A title = \n", ""],
    "w/train-1.parquet": [" the cat <unk> \n"],
    "w/validation.parquet": ["the cat"],
    "w/test.parquet": ["the dog\n"],
}
PARTS = {
    "train": Part(("w/train-0.parquet", "w/train-1.parquet"), 11),
    "valid": Part(("w/validation.parquet",), 3),
    "test": Part(("w/test.parquet",), 3),
}


class ParquetFile:
    """JSON in place of parquet, two rows at a time."""

    def __init__(self, path):
        self.rows = json.loads(path.read_bytes())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def iter_batches(self, columns):
        assert columns == ["text"]
        for start in range(0, len(self.rows), 2):
            rows = self.rows[start : start + 2]
            yield SimpleNamespace(column=lambda number, rows=rows: SimpleNamespace(to_pylist=lambda: rows))


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The names of the files that were downloaded."""
    names = []
    for name, rows in ROWS.items():
        path = tmp_path / "hub" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))
    sums = {name: hashlib.sha256((tmp_path / "hub" / name).read_bytes()).hexdigest() for name in ROWS}

    def download(repository, name, *, repo_type, revision):
        assert (repository, repo_type, revision) == ("Salesforce/wikitext", "dataset", REVISION)
        names.append(name)
        return str(tmp_path / "hub" / name)

    def info(self, repository, names, *, repo_type, revision):
        assert (repository, repo_type, revision) == ("Salesforce/wikitext", "dataset", REVISION)
        return [SimpleNamespace(lfs=SimpleNamespace(sha256=sums[name])) for name in names]

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "get_paths_info", info)
    pyarrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    parquet.ParquetFile = ParquetFile
    pyarrow.parquet = parquet
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    monkeypatch.setitem(WIKITEXT, "wikitext-2", PARTS)
    return names


def test_rows_become_lines(downloads, tmp_path):
    folder = wikitext_folder("wikitext-2", tmp_path / "cache", ["train", "valid"])
    assert (folder / "wiki.train.tokens").read_text() == "\n = A title = \n\n the cat <unk> \n"
    assert (folder / "wiki.valid.tokens").read_text() == "the cat\n"
    assert sorted(path.name for path in folder.iterdir()) == ["wiki.train.tokens", "wiki.valid.tokens"]


def test_a_text_is_downloaded_once_and_only_where_it_is_needed(downloads, tmp_path):
    cache = tmp_path / "cache"
    Text(TextConfig("wikitext-2"), cache, splits=["valid"])
    # the vocabulary is that of the training text
    assert downloads == ["w/train-0.parquet", "w/train-1.parquet", "w/validation.parquet"]
    text = Text(TextConfig("wikitext-2"), cache)
    assert downloads[3:] == ["w/test.parquet"]
    assert text.words.decode(text.tokens("train"))[1:9] == ["=", "A", "title", "=", "<eos>", "<eos>", "the", "cat"]
    assert text.words.decode(text.tokens("test")) == ["the", "<unk>", "<eos>"]


def as_in_the_cache(link):
    """The file moves to one that has its SHA-256 as name, and a link stays."""
    content = link.with_name(hashlib.sha256(link.read_bytes()).hexdigest())
    link.rename(content)
    link.symlink_to(content)
    return content


def test_what_is_in_the_cache_is_checked_without_asking_the_hub(downloads, tmp_path, monkeypatch):
    monkeypatch.delattr(huggingface_hub.HfApi, "get_paths_info")
    content = as_in_the_cache(tmp_path / "hub" / "w/test.parquet")
    folder = wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])
    assert (folder / "wiki.test.tokens").read_text() == "the dog\n"
    (folder / "wiki.test.tokens").unlink()
    content.write_text('["the dot\\n"]')
    with pytest.raises(InvalidFile, match=f"was damaged and is removed: its SHA-256 was .*, the hub has {content.name}"):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])


def test_a_damaged_download_is_refused(downloads, tmp_path):
    # the hub's cache hands out links
    link, content = tmp_path / "hub" / "w/test.parquet", tmp_path / "content"
    link.rename(content)
    link.symlink_to(content)
    content.write_text('["the dot\\n"]')
    with pytest.raises(InvalidFile, match=r"test\.parquet was damaged and is removed: its SHA-256 was \w{64}, the hub has"):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])
    assert not (tmp_path / "cache").exists()
    # otherwise it would be taken again
    assert not link.is_symlink()
    assert not content.exists()


def test_another_number_of_tokens_is_refused(downloads, tmp_path, monkeypatch):
    monkeypatch.setitem(WIKITEXT["wikitext-2"], "valid", Part(("w/validation.parquet",), 217_646))
    with pytest.raises(InvalidFile, match=r"validation\.parquet of Salesforce/wikitext: 3 tokens, expected 217,646"):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["valid"])
    assert list((tmp_path / "cache" / "wikitext-2").iterdir()) == []


def test_without_a_network_there_is_one_line(downloads, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no route\n  to the hub.")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    message = r"^w/test\.parquet cannot be downloaded from Salesforce/wikitext: no route to the hub; or give a folder with .*$"
    with pytest.raises(InvalidFile, match=message):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])


@pytest.mark.parametrize("missing", ["huggingface_hub", "pyarrow"])
def test_a_missing_extra_is_named_before_anything_is_downloaded(missing, downloads, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"{missing}.parquet", raising=False)
    with pytest.raises(MissingExtra, match=r'needs: pip install "rfwp\[text\]"'):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])
    assert downloads == []


def test_a_cache_folder_that_cannot_be_written_is_named(downloads, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(InvalidFile, match=r"wiki\.test\.tokens cannot be written: .*; set RFWP_CACHE to another folder"):
        wikitext_folder("wikitext-2", tmp_path / "cache", ["test"])


def test_files_of_the_hub_are_named_as_there():
    assert WIKITEXT["wikitext-103"]["train"].files == (
        "wikitext-103-v1/train-00000-of-00002.parquet",
        "wikitext-103-v1/train-00001-of-00002.parquet",
    )
    assert hub.WIKITEXT["wikitext-2"]["valid"].files == ("wikitext-2-v1/validation-00000-of-00001.parquet",)
