"""A browser and its pages; the models are those of the file that asks for them."""

import pytest

from tests.play.pages import DESK, served


@pytest.fixture(scope="module")
def address(models):
    with served(models) as (_, address):
        yield address


@pytest.fixture
def open_page(browser, address):
    """Opens the page at an address of its own; at the end, the browser must have had nothing to complain about."""
    contexts, complaints = [], []

    def open_page(state="", viewport=DESK, scheme="light", where=address):
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, accept_downloads=True))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{where}/#{state}")
        page.wait_for_selector("body[data-ready=yes]")
        return page

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    # a mistake in a text is answered with 400, which browsers note
    assert [text for text in complaints if "400" not in text] == []
