"""Runs to look at, and a real browser to look at them with."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from two_model_run import slim, write_two_models

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two models and its report; `two.toml` in the same folder is the scenario."""
    folder = tmp_path_factory.mktemp("several")
    scenario = write_two_models(folder)
    faults = ("--kill", "server-0@0.4s", "--restore", "server-0@1.2s")
    slim("simulate", "--config", str(scenario), "--router", "lp", *faults, "--out", str(folder))
    slim("report", str(folder))
    return folder


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a server dies and returns, and its report."""
    folder = tmp_path_factory.mktemp("recorded")
    faults = ("--kill", "server-0@0.5s", "--restore", "server-0@1.4s")
    slim("simulate", "--rate", "3000", "--seconds", "3", *faults, "--out", str(folder))
    slim("report", str(folder))
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window; SLIM_REQUIRE_BROWSER=1 makes its absence a failure."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        webdriver = None
    if chromium is None or driver is None or webdriver is None:
        reason = "no browser: install chromium, chromium-driver (apt) and selenium (pip)"
        if os.environ.get("SLIM_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield running
    running.quit()


@pytest.fixture
def keep(browser: Any) -> Callable[[str], None]:
    """Save a screenshot of the whole page for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def shoot(name: str) -> None:
        import base64

        shot = browser.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
        )
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    return shoot
