"""Gather what `python -m rfwp` needs on a machine without network: packages in one folder for its PYTHONPATH.

python tools/device_packages.py                            # fills .device/ (ignored by git)
python tools/device_packages.py --without atari peers      # a quarter of the size: no games, no fla-core to measure against
PYTHONPATH=.device python3.12 -m rfwp bench ops            # there, beside its own torch, triton and numpy
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "command line": [
        "rich",
        "markdown-it-py",
        "mdurl",
        "pygments",
        "tyro",
        "docstring-parser",
        "typeguard",
        "typing-extensions",
        "shtab",
    ],
    "saving models": ["safetensors"],
    "atari": ["ale-py", "gymnasium", "cloudpickle", "farama-notifications"],
    # its ops need no transformers
    "peers": ["fla-core", "einops", "packaging"],
}
LIMIT_MB = 40


def install(packages: list[str], target: Path, python: str, platform: str) -> None:
    """Wheels only, exactly these packages, in the versions of constraints.txt where it names them."""
    wanted = ["--only-binary=:all:", "--no-deps", "--python-version", python, "--implementation", "cp"]
    # wheels are named by the oldest system that they run on
    wanted += [word for name in (platform, "manylinux2014_x86_64") for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *wanted]
    subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), *packages], check=True)


def tidy(target: Path) -> None:
    """Without scripts and caches, and without what nothing here needs: windows for games, colours for source code."""
    for folder in (target / "bin", *target.rglob("__pycache__")):
        shutil.rmtree(folder, ignore_errors=True)
    lexers = (path for path in target.glob("pygments/lexers/*.py") if path.name not in ("__init__.py", "_mapping.py"))
    for path in (*target.glob("ale_py/libSDL2*"), *lexers):
        path.unlink()


def size_mb(target: Path) -> float:
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python on that machine")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64", help="its platform, as pip names it")
    parser.add_argument("--target", type=Path, default=ROOT / ".device", help="folder to fill; what is in it is replaced")
    parser.add_argument("--without", nargs="*", choices=["atari", "peers"], default=[], help="what is not needed there")
    arguments = parser.parse_args()
    packages = [package for part, names in PACKAGES.items() if part not in arguments.without for package in names]
    shutil.rmtree(arguments.target, ignore_errors=True)
    install(packages, arguments.target, arguments.python, arguments.platform)
    tidy(arguments.target)
    size = size_mb(arguments.target)
    if size > LIMIT_MB:
        raise SystemExit(f"{arguments.target} has {size:.0f} MiB, more than {LIMIT_MB}; name fewer packages")
    print(f"{arguments.target}: {len(packages)} packages, {size:.1f} MiB, for Python {arguments.python}")


if __name__ == "__main__":
    main()
