"""Lines of finished runs for the tests."""

from rfwp.config import replace, to_dict
from rfwp.presets import run_config
from rfwp.report.records import append_line


def line(preset="code-execution-3/delta-rnn", seed=1, score=0.9, seconds=100.0, time="2026-01-01T00:00", changes=None, **others):
    config = replace(run_config(preset), {"train.seed": seed, **(changes or {})})
    metric = "accuracy" if preset.startswith("listops") else "sequence accuracy"
    return {
        "preset": preset,
        "seed": seed,
        "config": to_dict(config),
        "metrics": {metric: score},
        "valid": {metric: score, "print accuracy": 0.99},
        "best_epoch": 190,
        "epochs": config.train.epochs,
        "seconds": seconds,
        "tokens_per_s": 1e6,
        "parameters": 3_724_826,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef",
        "torch": "2.13.0",
        "rfwp": "0.1.0",
        "time": time,
        "curve": [[epoch, 1.0 / epoch, score * epoch / 3] for epoch in (1, 2, 3)],
        **others,
    }


def write(folder, *lines):
    for data in lines:
        append_line(folder / "runs.jsonl", data)
