"""A real Chromium for tests of the HTML page; without one, tests are skipped and say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # No name resolves: a page that needs a network would log an error.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser driver; skips the test where Chromium or its driver is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield browser
    finally:
        browser.quit()


def errors(browser: Any) -> list[str]:
    """What the console says above the level of information."""
    return [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")
    ]


def opened(browser: Any, page: Path, width: int = 1280, height: int = 900) -> None:
    """Open a file in a window of a size in CSS pixels."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(page.resolve().as_uri())
