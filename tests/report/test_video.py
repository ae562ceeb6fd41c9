"""Pictures and videos of a game."""

import stat
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rfwp.errors import InvalidFile, InvalidInput, MissingExtra, UnknownName
from rfwp.report import video
from rfwp.report.video import BAR, CHOSEN, check_out, draw, short, write_picture, write_video

ACTIONS = ("NOOP", "UPRIGHTFIRE", "2")


def moments(n, action=1):
    for step in range(n):
        screen = np.full((21, 16, 3), 10 * step, np.uint8)
        yield SimpleNamespace(screen=screen, probabilities=[0.2, 0.7, 0.1], action=action, value=0.5, score=float(step))


def count(picture, colour):
    return int((np.asarray(picture) == np.array(colour)).all(-1).sum())


def test_the_screen_stays_sharp_and_the_action_taken_has_its_colour():
    (moment,) = moments(1, action=1)
    moment.screen[:, 8:] = 255
    picture = draw(moment, ACTIONS)
    assert picture.width == 320
    assert picture.height % 2 == 0
    # sixteen columns of twenty pixels each: black and white, nothing between them
    assert set(np.asarray(picture)[: 21 * 20].reshape(-1, 3)[:, 0].tolist()) == {0, 255}
    most, (least,) = count(picture, CHOSEN), moments(1, action=2)
    assert most > 3 * count(draw(least, ACTIONS), CHOSEN) > 0


def test_the_bar_of_the_value_goes_to_its_side():
    def places(value):
        (moment,) = moments(1)
        moment.value, moment.probabilities = value, [0.0, 1.0, 0.0]
        rows = np.asarray(draw(moment, ACTIONS))[420:440]
        return np.flatnonzero((rows == np.array(BAR)).all(-1).any(0))

    assert places(2.0).min() >= 280
    assert places(-2.0).max() <= 280


def test_a_gif_has_a_picture_a_step_and_plays_at_their_speed(tmp_path):
    path = tmp_path / "new" / "game.gif"
    assert write_video(moments(5), path, ACTIONS, 15.0) == 5
    with Image.open(path) as gif:
        assert (gif.n_frames, gif.info["duration"], gif.info["loop"]) == (5, 70, 0)
    assert [file.name for file in path.parent.iterdir()] == ["game.gif"]


def test_a_picture_is_of_the_step_that_was_asked_for(tmp_path):
    write_picture(moments(5), tmp_path / "one.png", ACTIONS, 3)
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.getpixel((5, 5)) == (30, 30, 30)
    with pytest.raises(InvalidInput, match="frame=5: the game has only 5 steps; give a smaller one"):
        write_picture(moments(5), tmp_path / "one.png", ACTIONS, 5)
    with pytest.raises(InvalidInput, match="frame=-1; steps are counted from 0"):
        write_picture(moments(5), tmp_path / "one.png", ACTIONS, -1)


def test_nothing_played_is_said(tmp_path):
    with pytest.raises(InvalidInput, match="nothing to see"):
        write_video(moments(0), tmp_path / "game.gif", ACTIONS, 15.0)


def fake_ffmpeg(folder, code):
    """A program that takes ffmpeg's arguments: the last one is the file."""
    path = folder / "ffmpeg"
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_mp4_gets_every_picture_through_ffmpeg(tmp_path, monkeypatch):
    program = fake_ffmpeg(tmp_path, "open(sys.argv[-1], 'w').write(f'{len(sys.stdin.buffer.read())} {sys.argv}')")
    monkeypatch.setattr(video, "ffmpeg", lambda: program)
    assert write_video(moments(3), tmp_path / "game.mp4", ACTIONS, 15.0) == 3
    size, words = (tmp_path / "game.mp4").read_text().split(" ", 1)
    (moment,) = moments(1)
    picture = draw(moment, ACTIONS)
    assert int(size) == 3 * 3 * picture.width * picture.height
    assert f"'{picture.width}x{picture.height}'" in words
    assert "'15'" in words


def test_ffmpeg_that_fails_is_one_line(tmp_path, monkeypatch):
    program = fake_ffmpeg(tmp_path, "sys.stdin.buffer.read(); sys.exit('no such\\ncodec')")
    monkeypatch.setattr(video, "ffmpeg", lambda: program)
    (tmp_path / "game.mp4").write_bytes(b"an earlier game")
    with pytest.raises(InvalidFile, match=r"ffmpeg could not write .*game\.mp4: no such codec; try a \.gif"):
        write_video(moments(3), tmp_path / "game.mp4", ACTIONS, 15.0)
    assert (tmp_path / "game.mp4").read_bytes() == b"an earlier game"
    assert {path.name for path in tmp_path.iterdir()} == {"ffmpeg", "game.mp4"}


def test_what_cannot_be_written_is_said_before_anything_is_played(tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match=r"unknown kind of video '\.avi'"):
        check_out(tmp_path / "game.avi")
    with pytest.raises(InvalidInput, match=r"can hold one step only; say which with --frame"):
        check_out(tmp_path / "game.png")
    with pytest.raises(InvalidInput, match=r"a single frame is a PNG, and .*game\.gif is none"):
        check_out(tmp_path / "game.gif", picture=True)
    check_out(tmp_path / "game.png", picture=True)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr(video.shutil, "which", lambda name: None)
    with pytest.raises(InvalidInput, match=r"an mp4 needs ffmpeg: install it, or pip install imageio-ffmpeg, or .* \.gif"):
        check_out(tmp_path / "game.mp4")
    monkeypatch.setattr(video.shutil, "which", lambda name: "/usr/bin/ffmpeg")
    check_out(tmp_path / "game.mp4")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"rfwp\[report\]"):
        check_out(tmp_path / "game.gif")


def test_names_of_actions_are_shortened_to_their_letters():
    assert [short(name) for name in ("UPRIGHTFIRE", "NOOP", "DOWN", "17")] == ["URF", "N", "D", "17"]


def test_importing_draws_nothing():
    code = "import sys, rfwp.report.video; print('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
