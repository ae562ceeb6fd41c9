"""Where the data of a run lie: no part of what the run is, for the fingerprint of its data tells them from others."""

from pathlib import Path
from typing import Any

from rfwp.config import FilesConfig, RunConfig
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.tasks import load_task


def places_of_sequences(config: RunConfig, folder: Path | None) -> dict[str, str]:
    """What `--data FOLDER` changes in the config of a run, or nothing."""
    if folder is None:
        return {}
    if not isinstance(config.task, FilesConfig):
        raise InvalidInput("--data is where your own sequences lie, but those of this run are generated; leave it away")
    return {"task.folder": str(folder.expanduser().resolve())}


def task_of_run(config: RunConfig) -> Any:
    """The task that a run was trained on; an error says what to do if its files have moved since."""
    try:
        return load_task(config.task)
    except InvalidFile as error:
        if not isinstance(config.task, FilesConfig):
            raise
        raise InvalidFile(f"{error} (the data of the run; if they have moved, name their place: --data FOLDER)") from error
