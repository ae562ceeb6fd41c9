"""`rfwp watch`: a video of an agent's game."""

from pathlib import Path
from typing import Annotated

import tyro

from rfwp.commands.console import console
from rfwp.errors import InvalidInput
from rfwp.rl.eval_options import WatchOptions


def watch(run: Annotated[Path, tyro.conf.Positional], options: WatchOptions = WatchOptions()) -> None:  # noqa: B008
    """Record an agent's game as a video, with the probabilities of its actions and the value that it expects.

    Args:
        run: The folder that `rfwp train` made.
    """
    from rfwp.report.video import check_out, write_picture, write_video
    from rfwp.rl.trained import load_agent, watched
    from rfwp.train.log import ConsoleLog

    if not options.seconds > 0:
        raise InvalidInput(f"seconds={options.seconds}; use a positive number")
    out = options.out or run / ("episode.gif" if options.frame is None else "frame.png")
    check_out(out, picture=options.frame is not None)
    game = watched(load_agent(run, options.device, ConsoleLog(console(stderr=True))), options)
    if options.frame is None:
        steps = write_video(game.moments(options.seconds), out, game.actions, game.steps_per_s)
        cut = "" if game.over else f", cut after {steps / game.steps_per_s:g} s: --seconds for more"
    else:
        write_picture(game, out, game.actions, steps := options.frame)
        cut = ""
    console().print(f"score {game.score:g} after {steps} steps{cut} -> {out}", soft_wrap=True, markup=False, highlight=False)
