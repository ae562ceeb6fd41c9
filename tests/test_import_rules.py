"""Who may import whom: never upward, never sideways; third-party packages behind their fences."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rfwp"

# a room may import itself and the rooms named here
ALLOWED = {
    "errors": set(),
    "version": set(),
    "atomic": set(),
    "config": {"errors"},
    "fwp": {"errors", "config"},
    "ops": {"errors", "config", "fwp"},
    "layers": {"errors", "config", "fwp", "ops"},
    "models": {"errors", "atomic", "config", "fwp", "layers", "version"},
    "trace": {"errors", "fwp", "layers", "models"},
    "presets": {"errors", "config"},
    "build": {"errors", "config", "presets", "models"},
    "train": {"errors", "atomic", "config", "fwp", "layers", "models", "tasks", "version", "environment"},
    "lm": {"errors", "atomic", "config", "models", "layers", "tasks", "train", "version", "environment"},
    "hf": {"errors", "config", "layers", "models", "tasks", "lm"},
    "rl": {"errors", "config", "models", "layers", "tasks", "train", "version", "environment"},
    "tasks": {"errors", "atomic", "config"},
    "environment": {"version"},
    "report": {"errors", "atomic", "config", "presets"},
    "bench": {
        *("errors", "config", "fwp", "ops", "layers", "models", "presets", "build", "train", "rl", "tasks", "report"),
        *("environment", "lm"),
    },
    "reproduce": {"errors", "config", "presets", "build", "environment", "report", "train", "lm", "rl", "tasks"},
    "play": {"errors", "config", "models", "tasks", "train", "trace", "lm", "rl"},
    "commands": {
        *("errors", "config", "fwp", "presets", "bench", "train", "report", "reproduce", "play", "lm", "rl", "hf"),
        "__init__",
    },
    "cli": {"errors", "commands", "train"},
    "__init__": {"errors", "config", "fwp", "layers", "models", "presets", "build", "trace", "version"},
    "__main__": {"cli"},
}
# third-party packages beside torch and numpy, and the only places that may import them
FENCES = {
    "triton": {"ops/gpu"},
    "numba": {"ops/cpu"},
    "llvmlite": {"ops/cpu"},
    "safetensors": {"models/pretrained.py", "train/checkpoint.py", "hf/export.py"},
    "huggingface_hub": {"models/pretrained.py", "tasks/hub.py"},
    "transformers": {"hf"},
    "tokenizers": {"hf"},
    "pyarrow": {"tasks/hub.py"},
    "fla": {"bench/contenders.py"},
    "ale_py": {"tasks/atari.py"},
    "gymnasium": {"tasks/gym.py"},
    "matplotlib": {"report/plots.py"},
    "PIL": {"report/video.py"},
    "imageio_ffmpeg": {"report/video.py"},
    "starlette": {"play"},
    "uvicorn": {"play"},
    "rich": {"cli.py", "commands/", "bench/table.py", "train/log.py"},
    "tyro": {"cli.py", "commands/"},
}
FREE = {"torch", "numpy"} | set(sys.stdlib_module_names)


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from rfwp import ops` imports rfwp.ops
            yield from (f"rfwp.{alias.name}" for alias in node.names) if node.module == "rfwp" else (node.module,)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


def test_there_are_files_to_walk():
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_what_it_may(path):
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "rfwp":
            there = rest[0] if rest else "__init__"
            known = (PACKAGE / there).exists() or (PACKAGE / f"{there}.py").exists()
            there = there if known else "__init__"
            assert there == here or there in ALLOWED[here], f"{path} imports {name}"
        elif top not in FREE:
            places = FENCES.get(top, set())
            relative = path.relative_to(PACKAGE).as_posix()
            assert any(relative.startswith(place) for place in places), f"{path} imports {name}"


def test_only_the_command_line_prints():
    for path in FILES:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = any(isinstance(called, ast.Name) and called.id == "print" for called in calls)
        assert not prints or room(path) in ("cli", "commands"), path


def test_import_loads_no_compiler():
    """Kernels are compiled when they are first used; until then their compilers cost no time."""
    code = "import sys, rfwp; print(*({'triton', 'numba', 'torch._dynamo', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_import_needs_no_extra():
    """In a fresh interpreter where every optional package is missing."""
    code = """
import sys
for name in ("triton", "numba", "huggingface_hub", "gymnasium", "ale_py", "transformers", "matplotlib"):
    sys.modules[name] = None
import torch, rfwp
y, state = rfwp.FWP("rdn", 8, 2)(torch.randn(1, 3, 8))
assert y.shape == (1, 3, 8)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
