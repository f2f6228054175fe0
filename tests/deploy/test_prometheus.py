"""A real Prometheus scrapes a real server with our configuration, and takes our alert rules.

SLIM_REQUIRE_PROMETHEUS=1 makes the absence of Prometheus a failure.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_commands import ROOT
from served import Served

DEPLOY = ROOT / "deploy"
PATIENCE_S = 60
Load = Callable[[str], AbstractContextManager[None]]


def program(name: str) -> str:
    """Return where a program of the package prometheus is, or skip the test."""
    path = shutil.which(name)
    if path is None:
        reason = f"no {name}: install prometheus (apt)"
        if os.environ.get("SLIM_REQUIRE_PROMETHEUS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def test_the_rules_are_right_and_fire_when_they_should() -> None:
    promtool = program("promtool")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *words], cwd=DEPLOY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(served: Served, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that runs with our files, and scrapes the server of these tests."""
    binary = program("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}]
    job["static_configs"] = [{"targets": [served.http]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--web.listen-address={address}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            [binary, f"--config.file={tmp_path / 'prometheus.yml'}", *options], stdout=log, stderr=log
        )
    try:
        yield address
    finally:
        running.terminate()
        running.wait(timeout=30)


def asked(address: str, path: str, **parameters: str) -> Any:
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None  # it has not started yet


def until(ask: Callable[[], Any]) -> Any:
    """Ask until the answer is true."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        if answer := ask():
            return answer
        time.sleep(0.2)
    raise AssertionError("Prometheus did not get there in time")


def test_a_real_prometheus_scrapes_the_server_and_knows_every_metric_of_the_rules(
    prometheus: str, served: Served, load_on: Load
) -> None:
    def values(query: str) -> Any:
        return (asked(prometheus, "query", query=query) or {}).get("result")

    with load_on(served.http):
        up = until(lambda: [one for one in values('up{job="slim"}') or [] if one["value"][1] == "1"])
        assert up[0]["metric"]["instance"] == served.http
        until(lambda: values("sum(rate(slim_images_total[10s])) > 0"))
    scraped = set(asked(prometheus, "label/__name__/values"))
    rules = until(lambda: ((asked(prometheus, "rules") or {}).get("groups") or [{}])[0].get("rules"))
    until(lambda: all(rule["health"] == "ok" for rule in asked(prometheus, "rules")["groups"][0]["rules"]))
    named = {name for rule in rules for name in re.findall(r"\bslim_\w+", rule["query"])}
    only_when_sure_or_with_limits = {"slim_confidence_trusted", "slim_goal_limit_verdict"}
    assert named - only_when_sure_or_with_limits <= scraped
    assert not [rule["name"] for rule in rules if rule["state"] == "firing" and rule["name"] != "SlimSlow"]
