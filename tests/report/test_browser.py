"""The report's page in a real browser: `make browser-tests`."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from rfwp.report.page import write_page
from rfwp.report.results import read_results
from tests.report.runs import line, write

pytestmark = pytest.mark.browser

DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_report_has_no_serious_barrier_and_asks_for_nothing(browser, tmp_path, viewport, scheme):
    write(tmp_path / "runs", line(seed=1), line(seed=2, score=0.7), line("code-execution-3/lstm", score=0.5))
    with (tmp_path / "runs" / "runs.jsonl").open("a") as file:
        file.write("{\n")
    path, _ = write_page(read_results(tmp_path), tmp_path)
    page = browser.new_page(viewport=viewport, color_scheme=scheme)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    # what is folded away is checked too
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"][:3]]) for v in serious] == []
    assert ([url for url in asked if not url.startswith(("file:", "data:"))], complaints) == ([], [])
    # nothing sticks out of a narrow screen
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
