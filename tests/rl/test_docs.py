"""The examples of docs/reinforcement-learning.md run, and its commands exist."""

import re
from pathlib import Path

from rfwp.cli import COMMANDS
from rfwp.config import AtariConfig
from rfwp.tasks.atari import PAPER_CODE, STANDARD

TEXT = (Path(__file__).parent.parent.parent / "docs" / "reinforcement-learning.md").read_text()


def test_python_examples_run(capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(block, "reinforcement-learning.md", "exec"), names)
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_commands_exist():
    commands = re.findall(r"^rfwp (\S+)", TEXT, flags=re.MULTILINE)
    assert len(commands) > 8
    assert set(commands) <= set(COMMANDS)


def test_what_it_says_of_the_protocols_is_so():
    assert AtariConfig().protocol == "paper_code"
    assert (PAPER_CODE.life_loss_ends, PAPER_CODE.sticky, PAPER_CODE.fire_reset, PAPER_CODE.noop_max) == (True, 0.0, True, 30)
    assert (STANDARD.life_loss_ends, STANDARD.sticky, STANDARD.fire_reset, STANDARD.noop_max) == (False, 0.25, False, 0)
