"""With `pip install "rfwp[atari]"` and nothing else, an agent trains on Pong, is tested and leaves its files."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
# comes with matplotlib
ALONG = {"PIL"}


def packages(requirements):
    names = (re.split(r"[\s\[<>=!;~]", text, maxsplit=1)[0] for text in requirements)
    return {name.replace("-", "_") for name in names if name != PROJECT["name"]}


def others():
    """What the other extras need, as names to import."""
    extras = PROJECT["optional-dependencies"]
    all_of_them = {name for extra in extras.values() for name in packages(extra)}
    return sorted((all_of_them | ALONG) - packages(extras["atari"]) - packages(PROJECT["dependencies"]))


def rfwp(folder, *arguments):
    """The command line in an interpreter where the other extras' packages are not installed."""
    code = f"import sys\nfor name in {others()}: sys.modules[name] = None\nfrom rfwp.cli import main\nmain({list(arguments)})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)


def test_the_other_extras_are_known():
    assert {"numba", "matplotlib", "tensorboard", "huggingface_hub", "PIL"} <= set(others())
    assert not {"ale_py", "gymnasium", "torch", "numpy", "tyro", "rich"} & set(others())


def test_2000_steps_of_pong_on_the_cpu_train_and_are_tested(tmp_path):
    small = ["agent.stem=shallow", "agent.features=32", "impala.batch=4", "impala.unroll=25", "impala.environments=8"]
    done = rfwp(
        tmp_path, "train", "atari/rdn", "--game", "pong", "--steps", "2000", "--device", "cpu", "--out", "run", "--set", *small
    )
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["steps"] >= 2000

    done = rfwp(tmp_path, "eval", "run", "--episodes", "1", "--runs", "2", "--device", "cpu")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "paper_code" in done.stdout
    found = json.loads((tmp_path / "run/eval-paper_code.json").read_text())
    assert found["steps"] == result["steps"]
    # a game of Pong is over when one side has 21 points
    assert all(-21 <= score <= 21 and score == int(score) and score != 0 for (score,) in found["returns"])

    done = rfwp(tmp_path, "watch", "run", "--seconds", "1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == 'rfwp: a picture needs: pip install "rfwp[report]"'
