"""Puts load on a served cluster and opens the dashboard in a real browser."""

import http.client
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
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


@pytest.fixture
def load_on() -> Callable[[str], AbstractContextManager[None]]:
    """Puts load on an address for as long as a `with` block runs."""
    return _load


@contextmanager
def _load(address: str) -> Iterator[None]:
    """Keep a server busy, four images at a time, until the block ends."""
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    head = (
        b'{"inputs":[{"name":"images","shape":[4,3,32,32],"datatype":"UINT8",'
        b'"parameters":{"binary_data_size":12288}}],"outputs":[{"name":"classes"}]}'
    )
    ended = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection(address, timeout=30)
        headers = {"inference-header-content-length": str(len(head))}
        while not ended.is_set():
            connection.request("POST", "/v2/models/slimresnet/infer", head + images.tobytes(), headers)
            connection.getresponse().read()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


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
