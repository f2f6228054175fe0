"""What tests of pages do in a browser: set its screen, wait, read a text, and look for what sticks out."""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_S = 30


def screen(browser: Any, width: int, height: int, scheme: str = "light") -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def until(browser: Any, script: str) -> Any:
    """Wait until a script returns a true value."""
    from selenium.webdriver.support.ui import WebDriverWait

    message = f"waited in vain for: {script}"
    return WebDriverWait(browser, PATIENCE_S, poll_frequency=0.1).until(
        lambda b: b.execute_script(f"return {script}"), message
    )


def text(browser: Any, id_: str) -> str:
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", id_))


def fits(browser: Any) -> bool:
    """Return whether nothing overflows the page sideways."""
    root = "document.documentElement"  # a phone's innerWidth grows with what overflows
    return bool(browser.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth"))


def sticking_out(browser: Any) -> list[str]:
    """Name the elements that are wider than the page, and texts that are cut off or leave their picture."""
    return list(browser.execute_script((HERE / "sticking_out.js").read_text()))


def scrolling(browser: Any, boxes: str = ".scroll, pre") -> list[str]:
    """Name the boxes that a reader has to scroll sideways."""
    return list(
        browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)"
            ".map(e => e.ariaLabel || e.textContent.trim().slice(0, 60))",
            boxes,
        )
    )


def overlapping(browser: Any, figure: str) -> list[str]:
    """Name the pairs of texts in a picture that cover each other."""
    return list(browser.execute_script((HERE / "overlapping.js").read_text(), figure))
