"""Which code a number comes from."""

import os
import subprocess

import torch

from rfwp import environment


def git(folder, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    alone = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, env=alone)


def test_the_commit_is_that_of_the_package_and_only_its_own_files_make_it_dirty(tmp_path, monkeypatch):
    package = tmp_path / "rfwp"
    package.mkdir()
    (package / "environment.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))

    def asked():
        found = environment.environment(torch.device("cpu"))
        return found["commit"] is not None, found["dirty"]

    (tmp_path / "other.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "other.py")
    git(tmp_path, "commit", "-q", "-m", "a repository that the package lies in, but is no part of")
    assert asked() == (False, None)
    git(tmp_path, "add", "rfwp")
    git(tmp_path, "commit", "-q", "-m", "the package")
    assert asked() == (True, False)
    (tmp_path / "results.jsonl").write_text("{}\n")
    assert asked() == (True, False)
    (package / "new.py").write_text("")
    assert asked() == (True, True)


def test_a_commit_that_is_given_counts():
    found = environment.environment(torch.device("cpu"), commit="feedbee")
    assert (found["commit"], found["dirty"]) == ("feedbee", None)
