"""Jobs to schedule and to run."""

from pathlib import Path

from rfwp.reproduce.jobs import make_jobs


def same(config):
    return config


def job(name="listops-10/rdn", seed=1, folder=Path("nowhere")):
    return make_jobs([name], (seed,), same, folder)[0]
