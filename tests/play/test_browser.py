"""The page in a real browser, as a person uses it: `make browser-tests`."""

import json
import os
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.play.pages import DESK, PHONE, at, check_barriers, read, served
from tests.play.small import LIST, PAPER, save

pytestmark = pytest.mark.browser

INPUT = ["text", "run", "example", "generate", "size", "model-a", "model-b"]
ORDER = [*INPUT, "first", "play", "slider", "chip", "edit", "find-head", "png", "json", "link"]
PICTURED = "x = 3 ; y = 7 ; x ++ ; print x ; x = 5 ; print x ; print y ;"
"""A variable that is set, changed, printed, set anew and printed again."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The packaged model, one that only ever adds, and one that reads lists; the last two have learned nothing."""
    folder = tmp_path_factory.mktemp("models")
    return [
        "code-execution-5",
        save(folder / "linear-transformer", "code-execution-5/linear-transformer"),
        save(folder / "lists", "listops-10/rdn"),
    ]


# --- The whole journey ---


def test_newcomer_sees_the_papers_program_executed_without_any_set_up(open_page, tmp_path):
    """`rfwp play` and nothing else."""
    with served([]) as (_, address):
        page = open_page("text=x = 1 ;", where=address)
        text = page.get_by_label("The text that the model reads")
        text.clear()
        text.press_sequentially(PAPER)
        text.press("Control+Enter")
        expect(page.locator(".chip")).to_have_count(22)
        page.locator(".chip.now").focus()
        for step in range(2, 23):
            page.keyboard.press("ArrowRight")
            at(page, step)
        last = page.locator(".chip").last
        expect(last.locator(".answer")).to_have_text("4")
        expect(last.locator(".answer")).to_have_class(re.compile("right"))
        expect(page.locator(".expectations figcaption")).to_contain_text("Says 4")
        expect(page.locator("#truth")).to_have_text("x = 4y = 7")
        expect(page.locator("#where")).to_contain_text("22 / 22")
        expect(page.locator(".answer.wrong")).to_have_count(0)
        check_saved(page, tmp_path, 22, "4")
        check_changed(page)
        check_barriers(page)


def check_saved(page, folder, step, said):
    """The step as a picture and as numbers."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as PNG").click()
    assert download.value.suggested_filename == f"rfwp-step-{step}.png"
    download.value.save_as(folder / "step.png")
    assert (folder / "step.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "step.png").stat().st_size > 5_000
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    (model,) = data["models"]
    assert (data["step"], model["model"], model["prediction"], model["truth"]) == (step - 1, "code-execution-5", said, said)
    assert len(model["layers"]) == 8


def check_changed(page):
    """Another number in the third token, and what that changes downstream."""
    page.locator(".chip").nth(2).click()
    at(page, 3)
    page.locator("#edit").select_option("5")
    expect(page.locator(".chip.edited")).to_have_count(1)
    last = page.locator(".chip").last
    expect(last.locator(".answer")).to_have_text("6")
    expect(last.locator(".answer")).to_have_class(re.compile("changed"))
    expect(last.locator(".truth-line")).to_have_text("6")
    expect(page.get_by_label(re.compile("Answers change from token 22 on"))).to_be_visible()
    page.get_by_role("button", name="Undo changes").click()
    expect(last.locator(".answer")).to_have_text("4")
    expect(page.locator(".chip.edited")).to_have_count(0)


# --- Reading ---


def test_matrices_are_described_in_words(open_page):
    page = open_page("t=10&layer=2&head=2")
    pictures = page.locator("canvas.large")
    expect(pictures).to_have_count(2)
    expect(pictures.first).to_have_attribute(
        "aria-label", re.compile(r"W of head 2 in layer 2, 16 by 16: \d+ cells changed.*β 0\.\d\d")
    )
    expect(page.locator(".heads").first.get_by_role("button")).to_have_count(8)


def test_generated_program_is_read(open_page):
    page = open_page()
    page.get_by_role("spinbutton").fill("7")
    page.get_by_role("button", name="New one").click()
    expect(page.locator(".statement")).to_have_count(7)
    assert page.locator(".token").all_inner_texts() == page.locator("#text").input_value().split()


def test_head_that_keeps_the_variables_is_found(open_page):
    page = open_page(urlencode({"text": PICTURED, "t": 16, "layer": 1, "head": 1}))
    page.get_by_role("button", name="Where are variables kept?").click()
    at(page, 21)
    found = page.locator("#found")
    expect(found).to_have_text(re.compile(r"^Layer \d, head \d, [WR]: \d\d % of what it reads at this print of x .* x = 5 ;$"))
    layer, head, matrix = re.search(r"Layer (\d), head (\d), ([WR])", found.inner_text()).groups()
    expect(page.get_by_role("button", name=f"Layer {layer}")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#chosen")).to_have_text(f"layer {layer}, head {head}, {matrix}")
    expect(page.locator(".marked:visible")).to_have_count(1)
    # what it reads was written at x = 5
    expect(page.locator(".chip").nth(16)).to_have_class(re.compile("main-source"))


def test_strength_of_writing_stands_below_each_token(open_page):
    page = open_page("t=22&layer=2&head=3")
    betas = "[...document.querySelectorAll('.chip')].map(chip => Number(chip.style.getPropertyValue('--beta')))"
    first = page.evaluate(betas)
    assert len(first) == 22
    assert all(0 < beta <= 1 for beta in first)
    page.locator(".heads").last.get_by_role("button").nth(2).click()
    expect(page.locator("#chosen")).to_have_text("layer 2, head 3, R")
    assert page.evaluate(betas) != first
    page.locator("#model-a").select_option("linear-transformer")
    expect(page.locator("#tape")).to_have_class(re.compile("without-beta"))
    expect(page.locator("#mark-write")).to_be_hidden()


@pytest.mark.parametrize(("what", "says"), [("overwriting", "5"), ("counting", "5")])
def test_why_is_shown_by_a_program(open_page, what, says):
    page = open_page("t=3")
    page.get_by_role("link", name="Why that matters").click()
    assert page.evaluate("document.activeElement.id") == "why"
    page.get_by_role("button", name=f"Show me: {what}").click()
    expect(page.locator("#found")).to_contain_text("of what it reads at this print of x")
    expect(page.locator(".chip.now .answer")).to_have_text(says)
    expect(page.locator(".answer.wrong")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "player"


def test_list_has_its_nesting_drawn(open_page):
    page = open_page()
    page.get_by_role("button", name="ListOps").click()
    expect(page.locator(".arcs path")).to_have_count(3)
    assert page.locator("#text").input_value() == LIST
    page.get_by_role("button", name="Last step").click()
    at(page, 14)
    expect(page.locator("#truth")).to_contain_text("this list is 6")


# --- Mistakes ---


@pytest.mark.parametrize("text", ["x = 3 ; prnt x ;", "x = 3 ; print x", "print x ;", "", "x = 1 ; " * 300])
def test_mistake_is_said_and_the_page_goes_on(open_page, text):
    page = open_page()
    read(page, text)
    expect(page.get_by_role("alert")).not_to_be_empty()
    read(page, "x = 3 ; print x ;")
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.locator(".chip")).to_have_count(7)


def test_server_that_has_gone_is_said(open_page):
    with served([]) as (process, address):
        page = open_page(where=address)
        process.terminate()
        process.wait()
        read(page, PAPER.replace("3", "2"))
        expect(page.get_by_role("alert")).to_contain_text("is rfwp play still running?")
    open_page.complaints[:] = [text for text in open_page.complaints if "ERR_CONNECTION_REFUSED" not in text]


def test_forgotten_text_is_read_again(open_page):
    page = open_page()
    for n in range(13):
        page.evaluate(
            """text => fetch("/api/trace", {method: "POST", headers: {"Content-Type": "application/json"},
            body: JSON.stringify({model: "code-execution-5", text})})""",
            f"x = {n % 10} ; " * (1 + n // 10),
        )
    page.get_by_role("button", name="Last step").click()
    at(page, 22)
    open_page.complaints[:] = [text for text in open_page.complaints if "404" not in text]


# --- Stepping and editing ---


def test_keyboard_alone_is_enough(open_page):
    page = open_page()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.classList[0]"))
        if reached[-1] == "link":
            break
    assert [place for place in reached if place in ORDER] == ORDER
    page.locator(".chip.now").focus()
    for key, step in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 22), ("Home", 1)):
        page.keyboard.press(key)
        at(page, step)
        # the focus goes along
        assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "step"
    page.keyboard.press("Space")
    at(page, 3)
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#edit")).to_be_focused()


def test_playing_stops_at_the_end(open_page):
    page = open_page("text=x = 3 ; print x ;&t=5")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    at(page, 7)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def test_change_that_is_no_program_is_refused_and_undone(open_page):
    page = open_page("t=2")
    page.locator("#edit").select_option("print")
    expect(page.get_by_role("alert")).to_contain_text("character 3: expected '='")
    expect(page.locator(".chip").nth(1).locator(".token")).to_have_text("=")
    expect(page.locator("#edit")).to_have_value("=")


def test_two_models_stand_side_by_side(open_page):
    page = open_page()
    page.get_by_label("beside").select_option("linear-transformer")
    expect(page.locator(".pane")).to_have_count(2)
    page.get_by_role("button", name="Last step").click()
    at(page, 22)
    expect(page.locator(".pane").first).to_contain_text("It can overwrite what a key held.")
    expect(page.locator(".pane").last).to_contain_text("It only ever adds")
    expect(page.locator(".chip").last.locator(".answer")).to_have_count(2)
    expect(page.locator(".chip").last.locator(".answer").first).to_have_text("4")
    boxes = [pane.bounding_box() for pane in page.locator(".pane").all()]
    assert boxes[0]["y"] == boxes[1]["y"]


# --- Sharing ---


def test_address_brings_everything_back(open_page):
    page = open_page("t=3")
    page.get_by_label("beside").select_option("linear-transformer")
    expect(page.locator(".pane")).to_have_count(2)
    page.locator("#edit").select_option("8")
    expect(page.locator(".chip.edited")).to_have_count(1)
    page.get_by_role("button", name="Layer 2").click()
    page.locator(".heads").first.get_by_role("button").nth(1).click()
    page.get_by_role("button", name="One step on").click()
    at(page, 4)
    other = open_page(page.url.partition("#")[2])
    at(other, 4)
    expect(other.locator(".pane")).to_have_count(2)
    expect(other.locator(".chip.edited .token")).to_have_text("8")
    expect(other.get_by_role("button", name="Layer 2")).to_have_attribute("aria-pressed", "true")
    expect(other.locator(".heads").first.get_by_role("button").nth(1)).to_have_attribute("aria-pressed", "true")
    assert other.locator("#text").input_value() == PAPER


def test_both_models_are_saved_as_numbers(open_page):
    page = open_page("t=22&b=linear-transformer")
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    assert [model["model"] for model in data["models"]] == ["code-execution-5", "linear-transformer"]


# --- For everyone ---


@pytest.mark.parametrize(
    ("state", "viewport", "scheme"),
    [
        ("t=22", DESK, "light"),
        ("t=22&b=linear-transformer&edit=2:5", DESK, "dark"),
        ("t=10", PHONE, "light"),
        ("a=lists&t=9", PHONE, "dark"),
    ],
)
def test_page_has_no_serious_barrier(open_page, state, viewport, scheme):
    check_barriers(open_page(state, viewport, scheme))


def test_screenshots_are_made_and_small(browser, tmp_path):
    """Into $RFWP_SCREENSHOTS where it is set, of the models in $RFWP_PLAY_MODELS or the packaged one: `make screenshots`."""
    folder = Path(os.environ.get("RFWP_SCREENSHOTS", tmp_path))
    with served(os.environ.get("RFWP_PLAY_MODELS", "").split()) as (_, address):
        for name, viewport, changes in (("light", DESK, {}), ("dark", DESK, {"edit": "16:8"}), ("phone", PHONE, {})):
            scheme = "dark" if name == "dark" else "light"
            page = browser.new_page(viewport=viewport, color_scheme=scheme, device_scale_factor=1.5)
            page.goto(f"{address}/#{urlencode({'text': PICTURED, 't': 21, **changes})}")
            at(page, 21)
            page.get_by_role("button", name="Where are variables kept?").click()
            expect(page.locator("#found")).to_contain_text("print of x")
            picture(page, folder / f"play-{name}.png", most=1_500 if name == "phone" else 2_000)
            if name == "light":
                # what a reader of the README needs
                page.evaluate("for (const part of document.querySelectorAll('.columns, .overview')) part.hidden = true")
                picture(page, folder / "play-short.png", most=2_000)
            page.close()


def picture(page, path, most):
    """The player and the memory, but no more than so many pixels of the page."""
    page.locator("#player-title").click()
    page.evaluate("scrollTo(0, 0)")
    first, last = (page.locator(card).bounding_box() for card in ("#player", "#memory"))
    height = min(most, last["y"] + last["height"] - first["y"] + 14)
    clip = {"x": 0, "y": first["y"] - 7, "width": page.viewport_size["width"], "height": height}
    page.screenshot(path=path, clip=clip, full_page=True)
    assert 10_000 < path.stat().st_size < 400_000
