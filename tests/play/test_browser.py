"""The page in a real browser, as a person uses it: `make browser-tests`."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

import rfwp
from rfwp.config import CodeExecutionConfig
from rfwp.tasks import CodeExecution
from tests.play.pages import DESK, PHONE, at, check_barriers, read, served
from tests.play.small import LIST, PAPER, SMALL, save

pytestmark = pytest.mark.browser

INPUT = ["text", "run", "example", "generate", "size", "model-a", "model-b"]
ORDER = [*INPUT, "first", "play", "slider", "chip", "edit", "png", "json", "link"]


def learn(folder: Path, preset: str) -> str:
    """A small model that has learned the paper's program, with any two digits in it."""
    torch.manual_seed(0)
    task = CodeExecution(CodeExecutionConfig(5))
    texts = [PAPER.replace("3", str(x)).replace("7", str(y)) for x in range(10) for y in range(10)]
    tokens = torch.stack([task.encode(text) for text in texts])
    targets = torch.tensor([task.target.encode(task.truth(text)) for text in texts])
    model = rfwp.build(preset, **SMALL | {"core.dropout": 0.0})
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(150):
        optimiser.zero_grad()
        model.loss(tokens, targets)[0].backward()
        optimiser.step()
    model.eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [
        learn(folder / "delta-rnn", "code-execution-5/delta-rnn"),
        learn(folder / "linear-transformer", "code-execution-5/linear-transformer"),
        save(folder / "lists", "listops-10/rdn"),
    ]


# --- Reading ---


def test_paper_program_is_executed(open_page):
    page = open_page()
    read(page, PAPER)
    page.get_by_role("button", name="Last step").click()
    at(page, 22)
    expect(page.locator(".chip").last.locator(".answer")).to_have_text("4")
    expect(page.locator(".chip").last.locator(".answer")).to_have_class(re.compile("right"))
    expect(page.locator(".expectations figcaption")).to_contain_text("Says 4")
    expect(page.locator("#truth")).to_have_text("x = 4y = 7")
    expect(page.locator("#where")).to_contain_text("22 / 22")


def test_matrices_are_described_in_words(open_page):
    page = open_page("t=10&layer=2&head=2")
    pictures = page.locator("canvas.large")
    expect(pictures).to_have_count(2)
    expect(pictures.first).to_have_attribute(
        "aria-label", re.compile(r"W of head 2 in layer 2, 8 by 8: \d+ cells changed.*β 0\.\d\d")
    )
    expect(page.locator(".heads").first.get_by_role("button")).to_have_count(2)


def test_generated_program_is_read(open_page):
    page = open_page()
    page.get_by_role("spinbutton").fill("7")
    page.get_by_role("button", name="New one").click()
    expect(page.locator(".statement")).to_have_count(7)
    assert page.locator(".token").all_inner_texts() == page.locator("#text").input_value().split()


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


def test_server_that_has_gone_is_said(open_page, models):
    with served(models[:1]) as (process, address):
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
            body: JSON.stringify({model: "delta-rnn", text})})""",
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


def test_changed_token_shows_what_changes_downstream(open_page):
    page = open_page("t=3")
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


def test_step_is_saved_as_picture_and_as_numbers(open_page, tmp_path):
    page = open_page("t=22")
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as PNG").click()
    assert download.value.suggested_filename == "rfwp-step-22.png"
    download.value.save_as(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "step.png").stat().st_size > 5_000
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    (model,) = data["models"]
    assert (data["step"], model["prediction"], model["truth"]) == (21, "4", "4")


def test_both_models_are_saved_as_numbers(open_page):
    page = open_page("t=22&b=linear-transformer")
    with page.expect_download() as download:
        page.get_by_role("button", name="Step as JSON").click()
    data = json.loads(Path(download.value.path()).read_text())
    assert [model["model"] for model in data["models"]] == ["delta-rnn", "linear-transformer"]


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


def test_screenshots_are_made_and_small(browser, models, tmp_path):
    """Into $RFWP_SCREENSHOTS where it is set, of the models in $RFWP_PLAY_MODELS: `make screenshots`."""
    folder = Path(os.environ.get("RFWP_SCREENSHOTS", tmp_path))
    with served(os.environ.get("RFWP_PLAY_MODELS", " ".join(models[:2])).split()) as (_, address):
        for name, width, scheme in (("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")):
            page = browser.new_page(viewport={"width": width, "height": 1450}, color_scheme=scheme)
            page.goto(f"{address}/#t=22&layer=2")
            page.wait_for_selector("body[data-shown='22']")
            if name == "dark":
                page.get_by_label("beside").select_option(index=1)
                page.wait_for_selector(".panes.two")
                page.wait_for_selector("body[data-shown='22']:not(.busy)")
            page.screenshot(path=folder / f"play-{name}.png")
            page.close()
            assert 10_000 < (folder / f"play-{name}.png").stat().st_size < 300_000
