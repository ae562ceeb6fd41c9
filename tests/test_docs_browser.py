"""The documentation's site in a real browser, opened as files: `make browser-tests`."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.pages import build_site

pytestmark = pytest.mark.browser

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build_site(out)
    return out


@pytest.fixture
def opened(browser, site):
    """Opens pages; at the end none of them may have complained, or asked for anything but files of the site."""
    asked, complaints, pages = [], [], []

    def open(name, **how):
        page = browser.new_page(**how)
        pages.append(page)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / name).as_uri())
        return page

    yield open
    assert ([url for url in asked if not url.startswith((site.as_uri(), "data:"))], complaints) == ([], [])
    for page in pages:
        page.close()


def test_search_finds_a_function_without_a_server(opened):
    page = opened("index.html", viewport=DESK)
    # key by key: the theme listens to keys
    page.get_by_role("textbox", name="Search").press_sequentially("recurrent_delta")
    result = page.locator(".md-search-result__link", has_text="Ops").first
    expect(result).to_be_visible(timeout=20_000)
    result.click()
    expect(page.locator("h1")).to_contain_text("Ops")


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [
        ("index.html", DESK, "light"),
        ("tutorial.html", DESK, "dark"),
        ("reproduce.html", PHONE, "light"),
        ("api/layers.html", PHONE, "dark"),
    ],
)
def test_pages_have_no_serious_barrier(opened, name, viewport, scheme):
    page = opened(name, viewport=viewport, color_scheme=scheme)
    # preloading would read the style sheets anew, which a browser forbids between files
    found = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"][:3]]) for v in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
