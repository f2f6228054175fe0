"""The Grafana dashboard and the telemetry page, compared with what `/metrics` exports."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from served import Served

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "slim-scheduler.json").read_text())
METRIC = re.compile(r"\bslim_[a-z_]+")


@pytest.fixture(scope="module")
def exported(served: Served) -> dict[str, set[str]]:
    """Return the labels of every exported sample, after requests were served."""
    from slimsched.serving.api.client.client import Client

    with Client(f"http://{served.http}") as client:
        import numpy as np

        client.classify(np.zeros((2, 3, 32, 32), np.uint8), deadline_ms=60_000)
    with urllib.request.urlopen(f"http://{served.http}/metrics", timeout=30) as page:
        text = page.read().decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels.setdefault(one.name, set()).update(one.labels)
        if not family.samples:  # of something that this server does not do
            labels[family.name] = set()
    return labels


def queries() -> Iterator[tuple[str, str]]:
    """Return every query of the dashboard with its legend."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"], target["legendFormat"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["expr"], annotation["titleFormat"]


def test_every_metric_and_label_in_grafana_is_exported(exported: dict[str, set[str]]) -> None:
    given_by_prometheus = {"job", "le"}
    for expression, legend in queries():
        names = METRIC.findall(expression)
        assert names, expression
        for name in names:
            assert name in exported, f"{name} of {expression} is not at /metrics"
        known = set.union(*(exported[name] for name in names)) | given_by_prometheus
        asked = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"\{\{(\w+)\}\}", legend)
        asked += [
            label
            for group in re.findall(r"by \(([^)]*)\)", expression)
            for label in re.findall(r"\w+", group)
        ]
        assert set(asked) <= known, expression


def test_every_exported_family_is_documented_and_the_other_way_round(exported: dict[str, set[str]]) -> None:
    text = (DOCS / "telemetry.md").read_text()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `slim_")]
    documented = {name for row in rows for name in written_out(re.findall(r"`([^`]+)`", row))}
    assert documented == families


def written_out(names: list[str]) -> list[str]:
    """Expand the short forms in the docs: `_power_watts` and `…_seconds` stand for full names."""
    whole_names = [names[0]]
    for name in names[1:]:
        stem = "slim_server" if name.startswith("_") else "slim_image"
        whole_names.append(name if name.startswith("slim_") else stem + name.lstrip("…"))
    return whole_names


def test_panels_do_not_overlap_and_have_a_title_and_a_description() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith(".")
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_guard_of_the_goal_router_is_counted(served: Served, exported: dict[str, set[str]]) -> None:
    with urllib.request.urlopen(f"http://{served.http}/metrics", timeout=30) as page:
        text = page.read().decode()
    match = re.search(r'slim_guard_decisions_total\{decided="learned"\} (\d+)', text)
    assert match is not None
    assert int(match[1]) > 0
