"""A language model on the page, in a real browser."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.play.pages import DESK, PHONE, at, check_barriers, read
from tests.play.small import save, save_language_model

pytestmark = pytest.mark.browser

TEXT = "word3 word4 , strange word5 word3 word4 , word9"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [
        save_language_model(folder / "rdn", "rdn"),
        save_language_model(folder / "delta-net", "delta_net"),
        save(folder / "code", "code-execution-5/delta-rnn"),
    ]


def test_words_are_coloured_by_surprise_and_say_it(open_page):
    page = open_page()
    read(page, TEXT)
    expect(page.locator(".chip")).to_have_count(10)
    words = page.locator(".chip").nth(3)
    expect(words.locator(".token")).to_have_class(re.compile(r"\bs[0-4]\b"))
    expect(words.locator(".bits")).to_have_text(re.compile(r"^\d+\.\d$"))
    expect(words).to_have_attribute("aria-label", re.compile(r"step 4, word ,, rdn surprised by \d+\.\d bits"))
    expect(page.get_by_role("list", name="Surprise, in bits")).to_contain_text("under 2")
    expect(page.locator(".chip").first.locator(".token")).to_have_text("¶")


def test_unknown_word_is_shown_as_such(open_page):
    page = open_page(f"text={TEXT}&t=5")
    expect(page.locator(".chip.unknown .token")).to_have_text("strange")
    expect(page.locator("#word-now")).to_contain_text("read as <unk>")
    expect(page.locator(".chip.unknown")).to_have_attribute("aria-label", re.compile("not in the vocabulary"))


def test_predictions_and_memory_stand_beside_the_word(open_page):
    page = open_page(f"text={TEXT}&t=4&layer=2")
    at(page, 4)
    expect(page.locator(".expectations figcaption")).to_have_text(
        re.compile(r"Expects \S+ next \(\d+ %\); what comes is <unk>\.")
    )
    expect(page.locator(".bars li")).to_have_count(5)
    expect(page.locator("canvas.large")).to_have_attribute("aria-label", re.compile("W of head 1 in layer 2"))
    page.keyboard.press("ArrowRight")
    at(page, 5)


def test_text_goes_on_word_by_word(open_page):
    page = open_page(f"text={TEXT}")
    page.locator("#words").fill("6")
    page.get_by_role("button", name="Go on").click()
    # line breaks among the new words are words too
    expect(page.locator(".chip")).to_have_count(16)
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    assert page.locator("#text").input_value().startswith(TEXT)


def test_cut_context_is_compared(open_page):
    page = open_page(f"text={TEXT}")
    page.locator("#context").fill("2")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".chip").nth(5).locator(".bits")).to_have_count(2)
    expect(page.locator("#compared")).to_have_text(
        re.compile(r"rdn: \d+\.\d\d bits a word with all .*, \d+\.\d\d with the last 2\.")
    )
    other = open_page(page.url.partition("#")[2])
    expect(other.locator(".chip").nth(5).locator(".bits")).to_have_count(2)
    page.get_by_role("button", name="All words").click()
    expect(page.locator(".chip").nth(5).locator(".bits")).to_have_count(1)


def test_mistake_is_said_and_the_page_goes_on(open_page):
    page = open_page(f"text={TEXT}")
    page.locator("#context").fill("500")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert").last).to_contain_text("use 0 to 100")
    page.locator("#context").fill("3")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#message")).to_be_empty()
    page.locator("#words").fill("0")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#message")).to_contain_text("words=0 does not fit")


def test_two_language_models_stand_side_by_side_and_are_saved(open_page):
    page = open_page(f"text={TEXT}&t=3")
    page.get_by_label("beside").select_option("delta-net")
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.locator(".chip").nth(5).locator(".bits")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    assert [(model["model"], model["token"]) for model in data["models"]] == [("rdn", "word4"), ("delta-net", "word4")]
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as PNG").click()
    assert Path(download.value.path()).stat().st_size > 5_000


def test_other_kinds_have_their_own_parts(open_page):
    page = open_page()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.get_by_role("button", name="Code execution").click()
    expect(page.locator(".statement")).to_have_count(5)
    expect(page.get_by_role("button", name="Go on")).to_be_hidden()
    expect(page.locator("#edit")).to_be_visible()
    page.get_by_role("button", name="Language model").click()
    expect(page.locator(".tape.language")).to_be_visible()
    expect(page.locator("#edit")).to_be_hidden()


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "dark"), (PHONE, "light")])
def test_page_has_no_serious_barrier(open_page, viewport, scheme):
    check_barriers(open_page(f"text={TEXT}&context=2&b=delta-net&t=4", viewport, scheme))
