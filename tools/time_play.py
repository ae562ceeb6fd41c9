"""Seconds from starting `rfwp play` until the page shows its first step, in a browser that is open already.

python tools/time_play.py                        # the packaged model, 10 starts
python tools/time_play.py runs/my-run --starts 3
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--starts", type=int, default=10)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before the first start")
    print(f"{'start':>5}  {'address':>7}  {'step 1':>6}  {'load':>4}")
    shown = []
    with sync_playwright() as playwright:
        path = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
        # root has no sandbox
        root = os.name == "posix" and os.geteuid() == 0
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        for number in range(1, options.starts + 1):
            address, step = time_start(options.models, browser)
            shown.append(step)
            print(f"{number:>5}  {address:>7.2f}  {step:>6.2f}  {os.getloadavg()[0]:>4.1f}", flush=True)
    print(f"step 1 is there after {statistics.median(shown):.2f} s (median; {min(shown):.2f} to {max(shown):.2f})")


def time_start(models: list[str], browser: Browser) -> tuple[float, float]:
    """Seconds until the command has said its address, and until a browser that then opens it shows the first step."""
    page = browser.new_page()
    began = time.perf_counter()
    command = [sys.executable, "-m", "rfwp", "play", *models, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                sys.exit(f"rfwp play said: {line.strip() or 'nothing'}")
            said = time.perf_counter() - began
            page.goto(f"http://{line.partition('http://')[2].split()[0]}", wait_until="commit")
            wait_for_step(page)
            return said, time.perf_counter() - began
        finally:
            process.terminate()
            page.close()


def wait_for_step(page: Page) -> None:
    """Asks every few milliseconds; Playwright's own waiting asks more and more rarely, at last twice a second."""
    for _ in range(6_000):
        if page.evaluate("document.body?.dataset.shown") == "1":
            return
        time.sleep(0.005)
    sys.exit("the page shows no step")


if __name__ == "__main__":
    main()
