"""The page as tests use it: served as a process, read, stepped, checked for barriers."""

import subprocess
import sys
from contextlib import contextmanager

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def served(models):
    """`rfwp play` as a process: it and its address."""
    command = [sys.executable, "-m", "rfwp", "play", *models, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().split()[-4]
        finally:
            process.terminate()


def read(page, text):
    page.get_by_label("The text that the model reads").fill(text)
    page.get_by_role("button", name="Read it").click()


def at(page, step):
    """The page shows this step, its matrices included."""
    page.wait_for_selector(f"body[data-shown='{step}']")
    expect(page.locator(".chip.now")).to_have_count(1)


def check_barriers(page):
    """Nothing that keeps people from using it."""
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"][:3]]) for v in serious] == []
    # nothing sticks out of a narrow screen
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
