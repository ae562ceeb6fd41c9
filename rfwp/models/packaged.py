"""Trained models that come with rfwp, each in a folder of its own: rfwp.load("code-execution-5")."""

from pathlib import Path

PRETRAINED = Path(__file__).parent.parent / "pretrained"
"""A folder for each: weights, config, the result of its training run, and a card that says what it is."""


def packaged_models() -> dict[str, Path]:
    """The folder of each, by name."""
    return {config.parent.name: config.parent for config in sorted(PRETRAINED.glob("[!.]*/config.json"))}
