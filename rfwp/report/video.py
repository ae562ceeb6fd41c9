"""Pictures and videos of a game: the screen, and under it how probable each action was and what the agent expected.

The only place that imports Pillow, which comes with matplotlib, and only when something is drawn.
"""

import shutil
import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rfwp.atomic import whole_file
from rfwp.errors import InvalidFile, InvalidInput, missing_extra, unknown

WIDTH = 320
MARGIN, BARS, LABELS = 8, 44, 12
BACKGROUND, TEXT, BAR, CHOSEN = (18, 18, 18), (220, 220, 220), (86, 180, 233), (230, 159, 0)
VIDEOS = (".gif", ".mp4")


class Moment(Protocol):
    """What `rfwp.rl.watch` shows of a step."""

    @property
    def screen(self) -> np.ndarray: ...
    @property
    def probabilities(self) -> list[float]: ...
    @property
    def action(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def score(self) -> float: ...


def check_out(path: Path, picture: bool = False) -> None:
    """Whether this file can be written, before anything is played for it. `picture`: of one step, no video."""
    if picture and path.suffix.lower() != ".png":
        raise InvalidInput(f"a single frame is a PNG, and {path} is none; give a file that ends in .png")
    if not picture and path.suffix.lower() == ".png":
        raise InvalidInput(f"{path} can hold one step only; say which with --frame, or give a file that ends in .gif")
    if not picture and path.suffix.lower() not in VIDEOS:
        raise unknown("kind of video", path.suffix or path.name, VIDEOS)
    if path.suffix.lower() == ".mp4":
        ffmpeg()
    _pillow()


def write_video(moments: Iterable[Moment], path: Path, actions: Sequence[str], steps_per_s: float) -> int:
    """A .gif or .mp4 with a picture a moment; how many there were."""
    pictures = (draw(moment, actions) for moment in moments)
    first = next(pictures, None)
    if first is None:
        raise InvalidInput("there is nothing to see: no step was played")
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    return write(first, pictures, path, steps_per_s)


def write_picture(moments: Iterable[Moment], path: Path, actions: Sequence[str], step: int) -> None:
    """The picture of one step, counted from 0, as PNG."""
    if step < 0:
        raise InvalidInput(f"frame={step}; steps are counted from 0")
    played = deque(enumerate(islice(moments, step + 1), 1), maxlen=1)
    steps, last = played.pop() if played else (0, None)
    if last is None or steps <= step:
        raise InvalidInput(f"frame={step}: the game has only {steps} steps; give a smaller one")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        draw(last, actions).save(file, format="PNG")


def draw(moment: Moment, actions: Sequence[str]) -> Any:
    """A picture of WIDTH pixels; all of one game have the same size."""
    image, drawing, font = _pillow()
    screen = image.fromarray(moment.screen)
    # small screens grow by whole pixels, so that they stay sharp
    scale = max(1, WIDTH // screen.width)
    shown = screen.resize((screen.width * scale, screen.height * scale), image.Resampling.NEAREST)
    if shown.width > WIDTH:
        shown = shown.resize((WIDTH, shown.height * WIDTH // shown.width))
    height = shown.height + LABELS + BARS + LABELS + 3 * MARGIN
    # videos want even numbers of pixels
    picture = image.new("RGB", (WIDTH, height + height % 2), BACKGROUND)
    picture.paste(shown, ((WIDTH - shown.width) // 2, 0))
    pen = drawing.Draw(picture)
    top = shown.height + MARGIN
    words = font.load_default(10)
    pen.text((MARGIN, top), f"score {moment.score:g}", TEXT, words)
    pen.text((WIDTH // 2, top), f"value {moment.value:+.2f}", TEXT, words)
    _draw_value(pen, moment.value, top)
    _draw_bars(pen, moment, actions, top + LABELS + MARGIN, words)
    return picture


def _draw_value(pen: Any, value: float, top: int) -> None:
    """A bar from the middle of the last quarter, to the right if more is to come than to lose."""
    middle, room = WIDTH * 7 // 8, WIDTH // 8 - MARGIN
    end = middle + round(room * float(np.tanh(value)))
    pen.line((middle, top, middle, top + LABELS), TEXT)
    pen.rectangle((min(middle, end), top + 3, max(middle, end), top + LABELS - 3), BAR)


def _draw_bars(pen: Any, moment: Moment, actions: Sequence[str], top: int, words: Any) -> None:
    """How probable each action was; the one that it took has another colour."""
    room = (WIDTH - 2 * MARGIN) / len(actions)
    for n, (name, probability) in enumerate(zip(actions, moment.probabilities, strict=True)):
        left = MARGIN + n * room
        bar = (left, top + BARS * (1 - probability), left + max(1.0, room - 2), top + BARS)
        pen.rectangle(bar, CHOSEN if n == moment.action else BAR)
        pen.text((left, top + BARS + 1), name if 6 * len(name) <= room else short(name), TEXT, words)


def short(name: str) -> str:
    """UPRIGHTFIRE -> URF; a name of another kind keeps its first letters."""
    for word in ("UP", "DOWN", "LEFT", "RIGHT", "FIRE", "NOOP"):
        name = name.replace(word, word[0])
    return name[:3]


def _write_gif(first: Any, others: Iterable[Any], path: Path, steps_per_s: float) -> int:
    pictures = [first, *others]
    # emulators have few colours; without dots between them files stay small
    colours = [picture.quantize(64, dither=0) for picture in pictures]
    # a GIF counts in hundredths of a second
    duration = 10 * max(2, round(100 / steps_per_s))
    with whole_file(path) as file:
        colours[0].save(file, format="GIF", save_all=True, append_images=colours[1:], duration=duration, loop=0, optimize=False)
    return len(pictures)


def _write_mp4(first: Any, others: Iterable[Any], path: Path, steps_per_s: float) -> int:
    with whole_file(path) as file:
        count, problem = _through_ffmpeg(first, others, str(file.name), steps_per_s)
        if problem:
            raise InvalidFile(f"ffmpeg could not write {path}: {problem}; try a .gif")
    return count


def _through_ffmpeg(first: Any, others: Iterable[Any], path: str, steps_per_s: float) -> tuple[int, str]:
    """Raw pictures into its standard input; how many there were, and what went wrong, if anything did."""
    size = f"{first.width}x{first.height}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{steps_per_s:g}", "-i", "-"]
    command = [ffmpeg(), "-y", "-loglevel", "error", *source, "-pix_fmt", "yuv420p", "-f", "mp4", path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    count = 0
    with process:
        try:
            for picture in (first, *others):
                process.stdin.write(picture.tobytes())
                count += 1
            process.stdin.close()
        except BrokenPipeError:
            # it has left; its words and its exit code say why
            count = 0
        words = process.stderr.read().decode(errors="replace")
    failed = process.returncode or not count
    return count, (" ".join(words.split()) or str(process.returncode)) if failed else ""


def ffmpeg() -> str:
    """The program that makes mp4 files."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        found = shutil.which("ffmpeg")
    if found is None:
        raise InvalidInput("an mp4 needs ffmpeg: install it, or pip install imageio-ffmpeg, or give a file that ends in .gif")
    return found


def _pillow() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise missing_extra("a picture", "report") from None
    return Image, ImageDraw, ImageFont
