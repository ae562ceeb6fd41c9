"""What a user installs: the wheel holds all files, and an extra brings all that its commands need."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import rfwp

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# a test shares the machine with others, and what is installed here must not be found there
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}
FOR_READERS = {"rfwp/ops/README.md"}

SMALL = ["agent.stem=shallow", "agent.features=32", "impala.batch=4", "impala.unroll=25", "impala.environments=8"]
TRAIN = ["train", "atari/rdn", "--game", "pong", "--steps", "2000", "--device", "cpu", "--set", *SMALL, "--out"]
ASKS_FOR = {
    "report": ["watch", "run", "--seconds", "1"],
    "play": ["play"],
    "transformers": ["export", "run", "exported"],
    "hub": ["generate", "someone/some-model"],
    "cpu": ["bench", "ops", "--quick", "--backends", "cpu", "--device", "cpu"],
}
"""Commands that another extra is for."""


def run(folder, *command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder, env=ENVIRONMENT)


def succeed(folder, *command):
    done = run(folder, *command)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def copy_sources(folder):
    """As in a fresh clone: a build leaves files beside the sources, and takes up those of an earlier one."""
    shutil.copytree(ROOT / "rfwp", folder / "rfwp", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def named(requirements):
    """The packages of a list of requirements, by their normal names."""
    return {normal(re.split(r"[\s\[<>=!;~]", text, maxsplit=1)[0]) for text in requirements}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture
def place():
    """A folder that is gone at once afterwards; pytest would keep the installed gigabyte of three runs."""
    with tempfile.TemporaryDirectory(prefix="rfwp-install-") as folder:
        yield Path(folder)


def test_wheel_holds_every_file_of_the_package_and_nothing_else(place):
    (place / "sources").mkdir()
    sources = copy_sources(place / "sources")
    files = {str(path.relative_to(sources)) for path in (sources / "rfwp").rglob("*") if path.is_file()}
    succeed(sources, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ".")

    (wheel,) = place.glob("*.whl")
    about = f"rfwp-{rfwp.__version__}.dist-info/"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(about)}
    assert held == files - FOR_READERS
    assert {"rfwp/py.typed", "rfwp/play/static/index.html", "rfwp/report/page.css"} <= held
    assert "rfwp/pretrained/code-execution-5/model.safetensors" in held


def test_with_the_atari_extra_alone_2000_steps_of_pong_train_and_are_tested(place):
    (place / "sources").mkdir()
    sources = copy_sources(place / "sources")
    succeed(place, sys.executable, "-m", "venv", "venv")
    pip, command = (place / "venv/bin/python", "-m", "pip"), place / "venv/bin/rfwp"
    # what is imported is compiled then; the rest of PyTorch would take longer than all that follows
    succeed(sources, *pip, "install", "--quiet", "--no-compile", "--constraint", "constraints.txt", ".[atari]")
    shutil.rmtree(sources)
    check_installed(json.loads(succeed(place, *pip, "list", "--format", "json")))

    said = succeed(place, command, *TRAIN, "run")
    assert 'no TensorBoard here; to have its curves: pip install "rfwp[train]"' in said
    result = json.loads((place / "run/result.json").read_text())
    assert result["steps"] >= 2000
    assert "paper_code" in succeed(place, command, "eval", "run", "--episodes", "1", "--runs", "2", "--device", "cpu")
    found = json.loads((place / "run/eval-paper_code.json").read_text())
    assert found["steps"] == result["steps"]
    # a game of Pong is over when one side has 21 points
    assert all(-21 <= score <= 21 and score == int(score) and score != 0 for (score,) in found["returns"])

    for extra, arguments in ASKS_FOR.items():
        check_asks_for(extra, run(place, command, *arguments))
    succeed(place, *pip, "uninstall", "--quiet", "--yes", *named(PROJECT["optional-dependencies"]["atari"]))
    check_asks_for("atari", run(place, command, *TRAIN, "another"))
    check_asks_for("atari", run(place, command, "eval", "run"))


def check_installed(listed):
    """The extra's packages and those that rfwp always needs, and none that are another extra's."""
    installed = {normal(package["name"]) for package in listed}
    extras = {extra: named(needed) for extra, needed in PROJECT["optional-dependencies"].items()}
    wanted = extras["atari"] | named(PROJECT["dependencies"]) | {"rfwp"}
    assert wanted <= installed
    # PyTorch for GPUs brings triton, which dev asks for elsewhere
    assert not installed & set().union(*extras.values()) - wanted - {"triton"}


def check_asks_for(extra, done):
    """In one line, and nothing worse."""
    assert done.returncode == 2, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rfwp: ")
    assert f'pip install "rfwp[{extra}]"' in last
