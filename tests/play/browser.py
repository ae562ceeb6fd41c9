"""Finds a Chromium for the tests of the page; `python -m tests.play.browser --install` gets Debian's where there is none."""

import os
import shutil
import subprocess
import sys

from playwright.sync_api import Browser, Error, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# none of a browser's own requests to the network; root has no sandbox
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-quic")
ADVICE = "no Chromium is here: install the package chromium of your system, or run: .venv/bin/playwright install chromium"


def launch(playwright: Playwright) -> Browser:
    """The system's Chromium, or the one that Playwright installed."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    arguments = [*QUIET, *(["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else [])]
    return playwright.chromium.launch(executable_path=path, args=arguments)


def can_launch() -> bool:
    with sync_playwright() as playwright:
        try:
            launch(playwright).close()
        except Error:
            return False
    return True


def install() -> None:
    """Debian's package, which needs root; without it nothing happens."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update"], check=False, **quiet)
        subprocess.run(
            ["apt-get", "install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"], check=False, **quiet
        )


def main() -> int:
    if not can_launch() and "--install" in sys.argv:
        install()
    if can_launch():
        return 0
    print(ADVICE, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
