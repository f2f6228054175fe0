"""The dashboard and the report in a real browser."""

import gzip
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browsing import fits, screen, sticking_out, text, until

from command_line import CliRunner
from served import Served

Load = Callable[[str], AbstractContextManager[None]]
EXPECTED = {"400", "401", "net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET"}
"""Console errors that a test causes on purpose: a refusal, or a server that it stopped."""


VERDICTS = "[...document.querySelectorAll('#limits .chip')].map(e => e.textContent)"


@pytest.fixture(autouse=True)
def desk(browser: Any) -> Iterator[None]:
    """Start each test in light mode at desktop size, and check that it leaves no error in the console."""
    screen(browser, 1280, 900)
    browser.get_log("browser")
    yield
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    browser.get("about:blank")
    assert [entry for entry in errors if not set(entry["message"].split()) & EXPECTED] == []


def test_the_page_loads_and_shows_every_server(served: Served, browser: Any) -> None:
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
    assert text(browser, "phase") == "ready"
    assert "router" in text(browser, "router")
    for landmark in ("header", "main", "[role=status][aria-live=polite]", "h1"):
        assert browser.execute_script("return document.querySelector(arguments[0]) !== null", landmark)


def test_numbers_change_under_load(
    served: Served, browser: Any, load_on: Load, keep: Callable[[str], None]
) -> None:
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#servers > li').length === 2")
    with load_on(served.http):
        until(browser, "parseFloat(document.getElementById('goodput').textContent) > 1")
        first = text(browser, "totals")
        until(browser, f"document.getElementById('totals').textContent !== {first!r}")
        until(browser, "document.querySelectorAll('#decisions tr').length >= 8")
        until(browser, "document.querySelector('#charts polyline').points.numberOfItems > 20")
        assert text(browser, "p99").endswith(("ms", "s"))
        assert fits(browser)
        keep("live-light")
        screen(browser, 1280, 900, "dark")
        keep("live-dark")
        screen(browser, 390, 844, "dark")
        assert fits(browser), "nothing sticks out on a phone"
        keep("live-phone")


def test_a_goal_set_in_the_page_changes_the_choices_served(
    own_server: Callable[..., Served], browser: Any, load_on: Load, keep: Callable[[str], None]
) -> None:
    from selenium.webdriver.support.ui import Select

    running = own_server("--goal", "max accuracy")
    browser.get(f"http://{running.http}/")
    until(browser, "document.getElementById('goal-says').textContent === 'Now: max accuracy'")
    until(browser, "!document.getElementById('banner').hidden")
    browser.find_element("id", "goal-open").click()
    widths = "[...document.querySelectorAll('#decisions tr')].map(row => Number(row.children[3].textContent))"
    with load_on(running.http):
        until(browser, f"{widths}.length === 8 && {widths}.some(width => width === 1)")
        Select(browser.find_element("id", "goal-objective")).select_by_value("min energy")
        set_goal(browser, accuracy="30", energy="90000", power="9000", p99="9000", p95="8000", mean="7000")
        now = "Now: accuracy>=30, energy<=90000mJ, power<=9000W, p99<=9000ms, p95<=8000ms, mean<=7000ms"
        until(browser, f"document.getElementById('goal-says').textContent === '{now}, min energy'")
        until(browser, f"{widths}.every(width => width < 1)")
        until(browser, f"{VERDICTS}.join() === '{','.join(['kept'] * 6)}'")
        until(browser, "document.querySelectorAll('#tiles > .kept:not([hidden])').length === 6")
        said = "document.getElementById('happenings').textContent"
        until(browser, f"{said}.includes('the goal is now: accuracy>=30')")
        until(browser, "document.querySelectorAll('#charts figure:first-child line.change').length === 1")
        assert sticking_out(browser) == []
        keep("goal")
        set_goal(browser, mean="0.1")
        until(browser, f"{VERDICTS}.join() === '{','.join(['kept'] * 5)},broken'")
        until(browser, f"{said}.includes('mean<=0.1ms is broken')")
        assert "goal at most 0.1 ms: broken" in text(browser, "tiles")
        screen(browser, 390, 844)
        assert sticking_out(browser) == [], "nothing sticks out on a phone"
        keep("goal-phone")
        screen(browser, 1280, 900)
    set_goal(browser, accuracy="")
    until(browser, "document.getElementById('goal-says').textContent.includes('needs an accuracy floor')")


def set_goal(browser: Any, **limits: str) -> None:
    """Write limits into the form of the goal, by figure, and send it."""
    for figure, limit in limits.items():
        field = browser.find_element("id", f"goal-{figure}")
        field.clear()
        field.send_keys(limit)
    browser.find_element("css selector", "#goal-form button").click()


def test_the_page_works_with_the_keyboard_alone(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(key: str) -> str:
        ActionChains(browser).send_keys(key).perform()
        return str(
            browser.execute_script("return document.activeElement.id || document.activeElement.className")
        )

    browser.get(f"http://{served.http}/")
    until(browser, "!document.getElementById('banner').hidden")
    assert press(Keys.TAB) == "skip", "the first stop leads past the head of the page"
    assert press(Keys.ENTER) == "main"
    assert press(Keys.TAB) == "goal-open"
    press(Keys.ENTER)
    fields = ["objective", "accuracy", "energy", "power", "p99", "p95", "mean"]
    first = str(browser.execute_script("return document.activeElement.id"))
    assert [first, *(press(Keys.TAB) for _ in fields[1:])] == [f"goal-{name}" for name in fields]
    browser.find_element("id", "goal-p99").send_keys(Keys.ENTER)
    until(browser, "performance.getEntriesByName(new URL('v2/goal', location).href).length >= 2")
    pictures = "[...document.querySelectorAll('svg:not([aria-hidden]), .bar, input, select')]"
    unnamed = f"{pictures}.filter(e => !e.ariaLabel && !e.labels?.length)"
    assert browser.execute_script(f"return {unnamed}.map(e => e.outerHTML)") == [], "all has words"


def test_a_killed_server_is_shown_and_returns(
    own_server: Callable[..., Served], browser: Any, load_on: Load, keep: Callable[[str], None]
) -> None:
    running = own_server()
    browser.get(f"http://{running.http}/")
    until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
    with load_on(running.http):
        os.kill(running.children()[0], signal.SIGKILL)
        until(browser, "document.querySelectorAll('#servers > li.down').length === 1")
        until(browser, "document.getElementById('news').textContent.endsWith(': down')")
        keep("live-server-down")
        until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
        until(browser, "document.getElementById('news').textContent.endsWith(': up again')")
    assert running.stop() == 0, "an open page does not keep the server from stopping"
    until(browser, "document.getElementById('phase').textContent === 'connection lost'")


def test_a_server_that_hangs_is_told_apart_from_an_idle_one(
    own_server: Callable[..., Served], browser: Any, keep: Callable[[str], None]
) -> None:
    running = own_server()
    browser.get(f"http://{running.http}/")
    until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
    running.process.send_signal(signal.SIGSTOP)
    try:
        until(browser, "document.getElementById('phase').textContent === 'silent'")
        assert "the figures shown are old" in text(browser, "news")
        keep("live-silent")
    finally:
        running.process.send_signal(signal.SIGCONT)
    until(browser, "document.getElementById('phase').textContent === 'ready'")


def test_a_failed_frame_is_reported(served: Served, browser: Any) -> None:
    browser.get(f"http://{served.http}/")
    until(browser, "document.getElementById('phase').textContent === 'ready'")
    told = browser.execute_script(
        """receive('event: trouble\\ndata: "ZeroDivisionError: no phase today"');
        return [document.getElementById('phase').textContent, document.getElementById('news').textContent]"""
    )
    assert told[0] == "no figures"
    assert "ZeroDivisionError: no phase today" in told[1]
    until(browser, "document.getElementById('phase').textContent === 'ready'")


def test_the_page_asks_for_the_token_of_the_api(
    own_server: Callable[..., Served], browser: Any, keep: Callable[[str], None]
) -> None:
    browser.get(f"http://{own_server('--token', 's3cret').http}/")
    until(browser, "!document.getElementById('token-form').hidden")
    keep("token")
    field = browser.find_element("id", "token")
    field.send_keys("wrong\n")
    until(browser, "document.getElementById('news').textContent.includes('not accepted')")
    field.clear()
    field.send_keys("s3cret\n")
    until(browser, "document.querySelectorAll('#servers .chip.up').length === 2")
    assert browser.execute_script("return document.getElementById('token-form').hidden")


def test_a_recorded_run_replays(
    served: Served, recorded: Path, browser: Any, keep: Callable[[str], None]
) -> None:
    browser.get(f"http://{served.http}/")
    browser.find_element("id", "file").send_keys(str(recorded / "frames.jsonl.gz"))
    until(browser, "document.querySelectorAll('#servers > li').length === 3")
    assert text(browser, "phase") == "recorded"
    seek(browser, 100)
    assert browser.execute_script("return document.querySelectorAll('#servers > li.down').length") == 1
    keep("replay")
    seek(browser, 230)
    assert browser.execute_script("return document.querySelectorAll('#servers > li.down').length") == 0
    browser.find_element("tag name", "body").send_keys(" ")
    until(browser, "document.getElementById('play').textContent === 'Play'")
    assert "3.0 s" in text(browser, "time-says")
    browser.find_element("id", "live").click()
    until(browser, "document.querySelectorAll('#servers > li').length === 2")


def test_several_models_stand_side_by_side(
    served: Served, several: Path, browser: Any, keep: Callable[[str], None]
) -> None:
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#models .model').length === 1")
    browser.find_element("id", "file").send_keys(str(several / "frames.jsonl.gz"))
    until(browser, "document.querySelectorAll('#models .model').length === 2")
    seek(browser, 200)
    of_each = "[...document.querySelectorAll('#models .model')].map(e => e.querySelectorAll('li').length)"
    assert browser.execute_script(f"return {of_each}") == [4, 2]
    legend = text(browser, "server-choice-legend")
    assert all(name in legend for name in ("0.25", "1.0", "small", "large"))
    colours = (
        "[...document.querySelectorAll('#server-choice-legend i')].map(e => getComputedStyle(e).background)"
    )
    assert browser.execute_script(f"return new Set({colours}).size") == 7, "each choice has its own colour"
    titles = "[...document.querySelectorAll('#charts figcaption')].map(e => e.textContent)"
    assert browser.execute_script(f"return {titles}")[-2:] == ["Choices of slimresnet", "Choices of sorter"]
    check_form_of_several_models(browser)
    assert fits(browser)
    keep("several-light")
    screen(browser, 1280, 900, "dark")
    keep("several-dark")
    screen(browser, 390, 844)
    assert fits(browser), "nothing sticks out on a phone"
    keep("several-phone")
    browser.find_element("id", "live").click()
    until(browser, "document.querySelectorAll('#models .model').length === 1")


def check_form_of_several_models(browser: Any) -> None:
    """Check that the form shows and sets the goal of each model."""
    said = browser.execute_script("""
      goalNow = { goal: 'accuracy>=75, power<=400W, max accuracy', objective: 'accuracy',
        min_accuracy: 0.75, power_w: 400,
        models: { sorter: { goal: 'accuracy>=60, min energy', objective: 'energy', min_accuracy: 0.6 } } };
      offerModels(['slimresnet', 'sorter']);
      const look = (model) => {
        $('goal-model').value = model;
        fillGoalForm();
        return [goalInForm(), $('goal-drop').hidden];
      };
      const found = [look(''), look('sorter')];
      goalNow = null;
      return found;
    """)
    assert said == [
        [{"goal": "accuracy>=75, power<=400W, max accuracy", "model": None}, True],
        [{"goal": "accuracy>=60, min energy", "model": "sorter"}, False],
    ]


def test_many_segments_and_choices_fit(
    served: Served, several: Path, browser: Any, tmp_path: Path, keep: Callable[[str], None]
) -> None:
    line = gzip.decompress((several / "frames.jsonl.gz").read_bytes()).splitlines()[-1]
    wide = deepened(msgspec.json.decode(line), stages=16, names=12)
    (tmp_path / "frames.jsonl").write_bytes(msgspec.json.encode(wide))
    browser.get(f"http://{served.http}/")
    browser.find_element("id", "file").send_keys(str(tmp_path / "frames.jsonl"))
    until(browser, "document.querySelectorAll('#models li').length === 16")
    assert fits(browser)
    keep("many-segments")
    screen(browser, 390, 844)
    assert fits(browser), "segments scroll inside their card"
    keep("many-segments-phone")


def deepened(frame: Any, *, stages: int, names: int) -> Any:
    """Return the frame of two models with this many stages together, each with all choices."""
    mix = [1 / names] * names
    servers = [{**s, "at": [3] * stages, "choices": mix} for s in frame["servers"]]
    return {
        **frame,
        "models": ["deep", "deeper"],
        "stages": [
            f"{'deep' if n < stages / 2 else 'deeper'} {n % (stages // 2) + 1}" for n in range(stages)
        ],
        "stage_models": [int(n >= stages / 2) for n in range(stages)],
        "stage_choices": [list(range(names))] * stages,
        "names": [f"choice {n + 1}" for n in range(names)],
        "choices": mix,
        "mix": [mix] * stages,
        "waiting": [12_345] * stages,
        "finished_per_s": [12_345.0] * stages,
        "servers": servers,
        "decisions": [],
    }


def test_a_drain_is_shown_on_every_track(
    served: Served, recorded: Path, browser: Any, tmp_path: Path
) -> None:
    lines = gzip.decompress((recorded / "frames.jsonl.gz").read_bytes()).decode().splitlines()
    (tmp_path / "frames.jsonl").write_text(lines[200].replace('"phase":"ready"', '"phase":"draining"'))
    browser.get(f"http://{served.http}/")
    browser.find_element("id", "file").send_keys(str(tmp_path / "frames.jsonl"))
    until(browser, "document.querySelectorAll('#servers .chip.draining').length === 3")


def test_an_event_log_becomes_a_page_of_its_own(
    recorded: Path, browser: Any, tmp_path: Path, keep: Callable[[str], None]
) -> None:
    words = ["report", str(recorded / "events.jsonl.gz"), "--out", str(tmp_path / "run.html")]
    assert CliRunner().invoke(words, catch_exceptions=False).exit_code == 0
    browser.get((tmp_path / "run.html").as_uri())
    until(browser, "mode === 'recorded' && document.querySelectorAll('#servers > li').length === 3")
    assert len(browser.execute_script("return frames")) >= 239
    keep("replay-event-log")


def test_an_event_log_is_refused_with_what_to_do(served: Served, recorded: Path, browser: Any) -> None:
    browser.get(f"http://{served.http}/")
    browser.find_element("id", "file").send_keys(str(recorded / "events.jsonl.gz"))
    until(browser, "document.getElementById('news').textContent.includes('slim report events.jsonl.gz')")


def seek(browser: Any, frame: int) -> None:
    browser.execute_script(
        "const time = document.getElementById('time'); time.value = arguments[0];"
        "time.dispatchEvent(new Event('input'))",
        frame,
    )


def test_a_file_of_another_kind_is_refused_with_a_reason(
    served: Served, browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "odd.jsonl").write_text("not json\n")
    browser.get(f"http://{served.http}/")
    until(browser, "document.querySelectorAll('#servers > li').length === 2")
    browser.find_element("id", "file").send_keys(str(tmp_path / "odd.jsonl"))
    until(browser, "document.getElementById('news').textContent.startsWith('odd.jsonl cannot be shown')")


def test_a_report_opens_from_disk(recorded: Path, browser: Any, keep: Callable[[str], None]) -> None:
    browser.get((recorded / "report.html").as_uri())
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") == 5
    assert fits(browser)
    keep("report-light")
    screen(browser, 390, 844, "dark")
    assert fits(browser), "nothing sticks out on a phone"
    keep("report-phone")
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded == [], "the report asks for nothing from anywhere"


def test_a_report_holds_the_replay_of_its_run(
    recorded: Path, browser: Any, keep: Callable[[str], None]
) -> None:
    browser.get((recorded / "report.html").as_uri())
    browser.execute_script("document.querySelector('#replay + details').open = true")
    frame = browser.find_element("css selector", "iframe")
    browser.execute_script("arguments[0].scrollIntoView()", frame)
    browser.switch_to.frame(frame)
    until(browser, "document.querySelectorAll('#servers > li').length === 3")
    seek(browser, 100)
    assert browser.execute_script("return document.querySelectorAll('#servers > li.down').length") == 1
    browser.switch_to.default_content()
    keep("report-replay")
