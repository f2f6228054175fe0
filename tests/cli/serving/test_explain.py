"""slim explain tells why a request went where it went."""

import json
from pathlib import Path

from command_line import refusal, slim


def test_a_request_has_a_story_with_numbers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("simulate", "--seconds", "1", "--router", "goal[p99<=80ms]", "--rate", "6000", "--out", str(run))
    assert slim(*words, seconds=120).code == 0
    story = json.loads(slim("explain", str(run), "900", "--json").out)
    texts = [step["text"] for step in story["steps"]]
    assert texts[0] == "arrives"
    routed = [text for text in texts if text.startswith("to server-")]
    assert len(routed) == 4, "one decision for each segment"
    assert "% within reach for" in routed[0]
    assert "ms of device time" in routed[0]
    assert any("next best server-" in text and "points worse" in text for text in routed)
    assert any("decides" in text or "device time is free" in text for text in routed)
    assert texts[-1].startswith("answered after ")
    shown = slim("explain", str(run)).out
    assert "answered after" in shown
    assert "no request 10000000" in refusal("explain", str(run), "10000000")


def test_a_run_without_a_log_of_requests_is_refused(tmp_path: Path) -> None:
    assert "no" in refusal("explain", str(tmp_path))
