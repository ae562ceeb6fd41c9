"""Kill a small training run with SIGKILL at random moments, go on with it, and compare its last bits with an undisturbed run.

python tools/kill_and_resume.py                              20 kills on the CPU
python tools/kill_and_resume.py --device cuda --kills 5      the same on a GPU
python tools/kill_and_resume.py --rl --kills 10              an agent: games start anew, so what is compared is what was counted
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rfwp
from rfwp.train.checkpoint import LAST, PREVIOUS, load

SMALL = "model.embedding=64 task.train=256 task.valid=32 task.test=32 train.batch=16"
CORES = {
    True: "model.core.hidden=64",
    False: "model.core.width=64 model.core.layers=2 model.core.heads=4 model.core.ff=128",
}
"""By whether it is an LSTM."""
TASKS = {True: "task.depth=4", False: "task.statements=20"}
"""By whether it is ListOps."""


def command(preset: str, device: str, epochs: int, folder: Path, save_minutes: float = 0.0) -> list[str]:
    """The same begins a run and goes on with it."""
    run = [sys.executable, "-m", "rfwp", "train", preset, "--out", str(folder), "--device", device, "--epochs", str(epochs)]
    changes = f"{SMALL} {CORES['/lstm' in preset]} {TASKS[preset.startswith('listops')]}"
    return [*run, "--save-minutes", str(save_minutes), "--set", *changes.split()]


def train(arguments: list[str], seconds: float | None = None) -> float | None:
    """Seconds from its first line to its end; None if it was killed so many seconds after its first line."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    start = time.monotonic()
    try:
        lines += process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    if process.returncode:
        sys.exit(f"the run failed with {process.returncode}: {''.join(filter(None, lines))}")
    return time.monotonic() - start


def interesting(folder: Path) -> str:
    """What the kill left behind."""
    missing = [name for name in ("last", "previous") if not (folder / name).exists()]
    unfinished = sorted(path.name for path in folder.glob(".*-new")) if folder.exists() else []
    return ", ".join([f"no {name}" for name in missing] + [f"{name} unfinished" for name in unfinished]) or "in a step"


def rl_command(device: str, steps: int, folder: Path) -> list[str]:
    """A small agent that learns to catch; a checkpoint after every update."""
    run = [sys.executable, "-m", "rfwp", "train", "rl", "--env", "catch", "--core", "lstm", "--out", str(folder)]
    changes = "agent.features=32 agent.core.hidden=32 impala.batch=8 impala.environments=16 impala.unroll=10"
    return [*run, "--device", device, "--steps", str(steps), "--save-minutes", "0", "--set", *changes.split()]


def kill_agents(device: str, kills: int, chance: random.Random, steps: int = 80_000) -> None:
    """After every kill a whole checkpoint is there that is no older than before; at the end all steps are counted once."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "agent"
        before = 0
        for n in range(kills):
            after = chance.uniform(0, 3.0)
            if train(rl_command(device, steps, folder), after) is not None:
                print(f"kill {n + 1}: too late, it had finished")
                break
            found = load(folder, (LAST, PREVIOUS), print)
            learned = found.state["steps"] if found else 0
            print(f"kill {n + 1} after {after:.1f} s: {learned:,} steps kept, {interesting(folder)}", flush=True)
            if learned < before:
                sys.exit(f"steps went back from {before} to {learned}")
            before = learned
        else:
            train(rl_command(device, steps, folder))
        result = json.loads((folder / "result.json").read_text())
        records = [json.loads(line)["steps"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if result["steps"] != steps or result["updates"] != steps // 80:
            sys.exit(f"{result['steps']} steps in {result['updates']} updates, expected {steps} in {steps // 80}")
        if records != sorted(set(records)) or records[-1] != steps:
            sys.exit(f"records are not in order: {records}")
        rfwp.load(str(folder / "last"))
        print(f"{steps:,} steps counted once, return {result['metrics']['return']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="code-execution-3/delta-rnn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rl", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    if options.rl:
        kill_agents(options.device, options.kills, chance)
        return
    with tempfile.TemporaryDirectory() as home:
        whole, killed = Path(home) / "whole", Path(home) / "killed"
        arguments = options.preset, options.device, options.epochs
        train(command(options.preset, options.device, 1, Path(home) / "warm"))  # data and kernels are made once
        seconds = train(command(*arguments, whole))
        assert seconds is not None
        print(f"undisturbed: {seconds:.1f} s")
        for n in range(options.kills):
            after = chance.uniform(0, 1.5 * seconds / options.kills)
            # 0 saves after every step, so that many kills fall into the saving; with more, `best` gets ahead of `last`
            if train(command(*arguments, killed, chance.choice((0.0, 0.02))), after) is not None:
                print(f"kill {n + 1}: too late, it had finished")
                break
            print(f"kill {n + 1} after {after:.1f} s: {interesting(killed)}", flush=True)
            if (killed / "result.json").exists():
                break
        else:
            train(command(*arguments, killed))
        for name in ("last", "best"):
            same = [(f / name / "model.safetensors").read_bytes() for f in (whole, killed)]
            if same[0] != same[1]:
                sys.exit(f"{name}: the weights differ")
        results = [json.loads((f / "result.json").read_text()) for f in (whole, killed)]
        for name in ("metrics", "valid", "best_epoch", "epochs", "curve"):
            if results[0][name] != results[1][name]:
                sys.exit(f"{name} differs: {results[0][name]} and {results[1][name]}")
        print("the same bits")


if __name__ == "__main__":
    main()
