import os
import signal

# a shell starts what runs in the background with Ctrl-C ignored; tests of Ctrl-C are about the usual case
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the GPU's kernels run in Triton's interpreter; the variable is read when triton is imported, which torch may do at any time
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

# tests run in several processes; threads inside each of them would only get in each other's way
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser():
    """A Chromium, for tests of pages."""
    # most tests need none
    from playwright.sync_api import sync_playwright

    from tests.play.browser import launch

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
