"""Times of `rfwp play`: from the command to the page's first step, in a browser that is open already; and of a program of 100
statements, reading it all and drawing a step.

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
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STATEMENTS, STEPS = 100, 60
TIME_STEPS = """async ([count, inOrder]) => {
  const slider = document.getElementById("slider"), all = Number(slider.max) + 1, times = [];
  const later = (ms) => new Promise((done) => setTimeout(done, ms));
  // what a frame draws is drawn when the next message arrives
  const drawn = () => new Promise((done) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = done;
    requestAnimationFrame(() => channel.port2.postMessage(0));
  });
  for (let n = 0; n < count; n++) {
    const step = (Number(slider.value) + (inOrder ? 1 : 137)) % all, began = performance.now();
    slider.value = step;
    slider.dispatchEvent(new Event("input"));
    while (document.body.dataset.shown !== `${step + 1}`) await later(0);
    await drawn();
    times.push(performance.now() - began);
    await later(60);
  }
  return times;
}"""
"""Milliseconds from moving the slider until the step is on the screen, with pauses as a person makes them."""


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
        time_program(options.models, browser)


@contextmanager
def served(models: list[str]) -> Iterator[str]:
    """The address of a page."""
    command = [sys.executable, "-m", "rfwp", "play", *models, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                sys.exit(f"rfwp play said: {line.strip() or 'nothing'}")
            yield f"http://{line.partition('http://')[2].split()[0]}"
        finally:
            process.terminate()


def time_start(models: list[str], browser: Browser) -> tuple[float, float]:
    """Seconds until the command has said its address, and until a browser that then opens it shows the first step."""
    began = time.perf_counter()
    with browser.new_page() as page, served(models) as address:
        said = time.perf_counter() - began
        page.goto(address, wait_until="commit")
        wait_for_step(page)
        return said, time.perf_counter() - began


def time_program(models: list[str], browser: Browser) -> None:
    with browser.new_page() as page, served(models) as address:
        page.goto(address)
        wait_for_step(page)
        page.locator("#size").fill(f"{STATEMENTS}")
        began = time.perf_counter()
        page.locator("#generate").click()
        page.locator(".statement").nth(STATEMENTS - 1).wait_for(state="attached")
        wait_for_step(page)
        tokens = int(page.locator("#slider").get_attribute("max") or 0) + 1
        print(
            f"a program of {STATEMENTS} statements, {tokens} tokens, is read and shown after {time.perf_counter() - began:.2f} s"
        )
        for name, in_order in (("the next step", True), ("another step", False)):
            times = sorted(page.evaluate(TIME_STEPS, [STEPS, in_order]))
            middle, most = statistics.median(times), times[-STEPS // 10]
            print(f"{name} is drawn after {middle:.0f} ms (median; 90 % in {most:.0f}), load {os.getloadavg()[0]:.1f}")


def wait_for_step(page: Page) -> None:
    """Asks every few milliseconds; Playwright's own waiting asks more and more rarely, at last twice a second."""
    for _ in range(6_000):
        if page.evaluate("document.body?.dataset.shown") == "1":
            return
        time.sleep(0.005)
    sys.exit("the page shows no step")


if __name__ == "__main__":
    main()
