"""Nothing is cut off, nothing sticks out and no labels pile up: on a desktop, on a phone, light and dark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import fits, overlapping, screen, scrolling, sticking_out, until
from two_model_run import slim

from served import Served
from slimsched.dashboard.pictures import shades

DESKTOP, PHONE = (1280, 900), (390, 844)
LONG_ROUTERS = "random,sed,drift-plus-penalty:v=0.612,drift-plus-penalty:v=0.6,goal,goal[p99<=80ms],"
LONG_ROUTERS += (
    "goal[accuracy>=74, p99<=80ms, min energy],warm:drift-plus-penalty:v=0.7,sharded:2:goal,lp:margin=1.2"
)
LONG_POLICIES = "tiresias,gandiva,manual:machine_s=43200:rack_s=86400,dally"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of ten routers, some with long names, on two seeds."""
    folder = tmp_path_factory.mktemp("compared")
    options = ("--rate", "600", "--seconds", "0.5", "--seeds", "2", "--warmup", "0")
    slim("compare", "--routers", LONG_ROUTERS, *options, "--out", str(folder))
    slim("report", str(folder))
    return folder / "report.html"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of job policies on two seeds."""
    folder = tmp_path_factory.mktemp("jobs")
    options = ("--jobs", "60", "--cluster", "racks-64", "--seeds", "2")
    slim("jobs", "compare", "--policies", LONG_POLICIES, *options, "--out", str(folder))
    slim("report", str(folder))
    return folder / "report.html"


@pytest.fixture(params=["recorded", "compared", "jobs"])
def report(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """One of the reports, with its name."""
    found: Path = request.getfixturevalue(request.param)
    return request.param, found / "report.html" if found.is_dir() else found


def test_a_report_fits_desktop_and_phone(
    report: tuple[str, Path], browser: Any, keep: Callable[[str], None]
) -> None:
    name, path = report
    screen(browser, *DESKTOP)
    browser.get(path.as_uri())
    assert sticking_out(browser) == []
    assert scrolling(browser) == [], "a desktop shows whole tables and pictures"
    keep(f"overflow-{name}-desktop")
    screen(browser, *DESKTOP, "dark")
    keep(f"overflow-{name}-dark")
    screen(browser, *PHONE)
    assert fits(browser)
    assert sticking_out(browser) == []
    assert scrolling(browser, "section .scroll, pre") == [], "a phone scrolls pictures only, in their boxes"
    keep(f"overflow-{name}-phone")


def test_labels_of_pictures_do_not_pile_up(report: tuple[str, Path], browser: Any) -> None:
    screen(browser, *DESKTOP)
    browser.get(report[1].as_uri())
    assert overlapping(browser, "figure") == []


def test_the_dashboard_fits_desktop_and_phone(
    served: Served, recorded: Path, browser: Any, keep: Callable[[str], None]
) -> None:
    screen(browser, *DESKTOP)
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
    assert sticking_out(browser) == []
    browser.find_element("id", "file").send_keys(str(recorded / "frames.jsonl.gz"))
    until(browser, "document.querySelectorAll('#servers > li').length === 3")
    browser.execute_script("seek(230)")
    for width, height in (DESKTOP, PHONE):
        for scheme in ("light", "dark"):
            screen(browser, width, height, scheme)
            assert sticking_out(browser) == []
            assert overlapping(browser, "#charts figure:first-child") == []
            keep(f"overflow-dashboard-{width}-{scheme}")


def test_choices_have_the_same_colours_in_pictures_and_on_the_page(served: Served, browser: Any) -> None:
    screen(browser, *DESKTOP)
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#server-choice-legend i').length === 4")
    painted = browser.execute_script("""
      const brush = new OffscreenCanvas(1, 1).getContext('2d');
      return [...document.querySelectorAll('#server-choice-legend i')].map((swatch) => {
        brush.fillStyle = getComputedStyle(swatch).backgroundColor;
        brush.fillRect(0, 0, 1, 1);
        return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
      });
    """)
    drawn = [[int(shade[at : at + 2], 16) for at in (1, 3, 5)] for shade in shades(4)]
    assert all(
        abs(a - b) <= 2
        for one, other in zip(painted, drawn, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_a_time_without_answers_leaves_a_gap_in_every_line(
    served: Served, recorded: Path, browser: Any, keep: Callable[[str], None]
) -> None:
    screen(browser, *DESKTOP)
    browser.get(f"http://{served.http}/")
    browser.find_element("id", "file").send_keys(str(recorded / "frames.jsonl.gz"))
    until(browser, "document.querySelectorAll('#servers > li').length === 3")
    lines = """
      const none = { latency_p50_s: null, latency_p95_s: null, latency_p99_s: null };
      for (const f of frames.slice(100, 140)) Object.assign(f, none);
      frames.at(-1).happenings = [{ at_s: 2, text: 'goal: p99<=50ms', kind: 'goal' }];
      seek(frames.length - 1);
      const first = document.querySelector('#charts figure');
      return [first.querySelectorAll('polyline').length, first.querySelectorAll('line.change').length];
    """
    assert browser.execute_script(lines) == [6, 1], "two parts of each of three lines, and a mark"
    keep("overflow-gap")
