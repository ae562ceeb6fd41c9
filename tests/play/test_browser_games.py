"""An agent on the page, in a real browser."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rfwp.config import LSTMConfig, MemoryGameConfig
from tests.play.pages import DESK, PHONE, check_barriers
from tests.play.small import save_agent_run, save_catch

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    maze = MemoryGameConfig("t-maze", length=40)
    return [
        save_catch(folder / "rdn", slow="recurrent"),
        save_agent_run(folder / "lstm", LSTMConfig(8), maze, actions=4, vector=4),
    ]


def at(page, step):
    page.wait_for_selector(f"body[data-shown='{step}']")
    expect(page.locator("#where")).to_contain_text(f"{step} /")


def test_agent_is_watched_step_by_step(open_page):
    page = open_page("seed=3&sample=yes")
    at(page, 1)
    first = page.locator("#screen").get_attribute("src")
    assert page.evaluate("document.getElementById('screen').naturalWidth") == 60
    page.get_by_role("button", name="One step on").click()
    at(page, 2)
    assert page.locator("#screen").get_attribute("src") != first
    expect(page.locator("#score")).to_have_text(re.compile(r"score 0, value -?\d\.\d\d"))
    expect(page.locator("#screen")).to_have_attribute("alt", re.compile("The screen at step 2; the agent does"))
    expect(page.locator("#actions")).to_have_attribute(
        "aria-label", re.compile(r"Probabilities of 3 actions over 2 steps; now .* \d+ %")
    )
    expect(page.locator("#values")).to_have_attribute("aria-label", re.compile("Value over 2 steps"))
    page.get_by_role("button", name="One step back").click()
    at(page, 1)
    assert page.locator("#screen").get_attribute("src") == first


def test_fast_weights_stand_beside_the_game(open_page):
    page = open_page("seed=3&sample=yes&t=4&layer=2&head=2")
    at(page, 4)
    expect(page.locator("canvas.large")).to_have_attribute(
        "aria-label", re.compile(r"W of head 2 in layer 2, 4 by 4: .*β 0\.\d\d")
    )
    expect(page.locator(".expectations figcaption")).to_contain_text("Does ")
    expect(page.locator(".cause").first).to_contain_text("Most of this read was written at")
    page.get_by_role("button", name="Layer 1").click()
    expect(page.locator("canvas.large")).to_have_attribute("aria-label", re.compile("in layer 1"))


def test_game_plays_to_its_end_and_anew(open_page):
    page = open_page("seed=3")
    page.keyboard.press("Space")
    expect(page.locator("#where")).to_contain_text("the game is over", timeout=20_000)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    page.keyboard.press("Home")
    at(page, 1)
    page.locator("#seed").fill("5")
    page.get_by_role("button", name="New game").click()
    expect(page.locator("#where")).to_contain_text("1 / 1")
    assert "seed=5" in page.url


def test_keyboard_pauses_and_steps(open_page):
    page = open_page("a=lstm&seed=1&sample=yes")
    page.keyboard.press("Space")
    at(page, 2)
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    page.keyboard.press("Home")
    at(page, 1)
    page.keyboard.press("ArrowRight")
    at(page, 2)


def test_agent_without_fast_weights_has_no_memory_to_show(open_page):
    page = open_page("a=lstm&seed=1")
    at(page, 1)
    expect(page.locator("#memory")).to_be_hidden()
    page.locator("#agent").select_option("rdn")
    expect(page.locator("#memory")).to_be_visible()
    expect(page.locator(".pane")).to_have_count(1)


def test_address_plays_the_same_game_again(open_page):
    page = open_page("seed=3&sample=yes&t=6")
    at(page, 6)
    other = open_page(page.url.partition("#")[2])
    at(other, 6)
    assert other.locator("#screen").get_attribute("src") == page.locator("#screen").get_attribute("src")
    # the server holds one game, and says so
    page.get_by_role("button", name="One step on").click()
    expect(page.locator("#game-message")).to_contain_text("start a new one")
    open_page.complaints[:] = [text for text in open_page.complaints if "404" not in text]


def test_step_is_saved_as_picture_and_as_numbers(open_page):
    page = open_page("seed=3&t=3")
    at(page, 3)
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    assert (data["model"], data["step"], data["seed"]) == ("rdn", 2, 3)
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as PNG").click()
    assert Path(download.value.path()).stat().st_size > 5_000


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_page_has_no_serious_barrier(open_page, viewport, scheme):
    page = open_page("seed=3&t=5", viewport, scheme)
    at(page, 5)
    check_barriers(page)
