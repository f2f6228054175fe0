"""The files of the dashboard page."""

from importlib.resources import files

import msgspec

from slimsched.serving.telemetry.live_view import Frame

SCRIPTS = (
    "pieces.js",
    "layout.js",
    "chart.js",
    "river.js",
    "track.js",
    "goal.js",
    "banner.js",
    "dashboard.js",
)
"""The scripts, in the order the page loads them."""


def asset(name: str) -> str:
    """Return the text of one file."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def replay_page(frames: list[Frame]) -> str:
    """Return the dashboard as one file that contains a recorded run."""
    data = msgspec.json.encode(frames).decode().replace("</", "<\\/")
    recorded = f'<script type="application/json" id="frames">{data}</script>'
    style = f"<style>{asset('dashboard.css')}</style>"
    page = asset("index.html").replace('<link rel="stylesheet" href="dashboard.css">', style)
    for name in SCRIPTS:
        page = page.replace(f'<script src="{name}"></script>', f"{recorded}<script>{asset(name)}</script>")
        recorded = ""
    return page
