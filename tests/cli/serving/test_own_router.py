"""A router of a user's own, from an installed package or from a file, wherever a router is named."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from served import Served
from slimsched.serving.api.client.client import Client

SLIM = [sys.executable, "-c", "from slimsched.cli.app import main; main()"]
ROUTER = '''
from typing import Literal
from slimsched.serving.gateway.observation import Route


class NarrowRouter:
    """Every request to the first server that is up, at one width."""

    def __init__(self, cluster, rng, *, width: float = 0.25, order: Literal["first", "last"] = "first"):
        self.choice = cluster.models[0].spec.choice(0, str(width))
        self.place, self.group = 0 if order == "first" else -1, cluster.batch_limit

    def route(self, seen):
        return Route(seen.alive_ids[self.place], self.choice, self.group, "narrow")
'''


@pytest.fixture
def router_file(tmp_path: Path) -> Path:
    path = tmp_path / "narrow_router.py"
    path.write_text(ROUTER)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which pip has installed a package that declares the router as an entry point."""
    wheel, info = tmp_path / "narrow-1.0-py3-none-any.whl", "narrow-1.0.dist-info"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("narrow_router.py", ROUTER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: narrow\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/entry_points.txt", "[slimsched.routers]\nnarrow = narrow_router:NarrowRouter\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(site), str(wheel)], check=True, timeout=120)
    return site


def slim(*words: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = [str(one) for one in (site, os.environ.get("PYTHONPATH")) if one]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([*SLIM, *words], capture_output=True, text=True, timeout=120, env=environment)


def compared(routers: str, site: Path | None = None) -> list[dict[str, object]]:
    done = slim("compare", "--rate", "500", "--seconds", "0.5", "--routers", routers, "--json", site=site)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def test_a_router_of_an_installed_package_is_compared_and_listed(site: Path) -> None:
    rows = compared("sed,narrow,narrow:width=0.5:order=last", site)
    assert [row["router"] for row in rows] == ["sed", "narrow", "narrow:width=0.5:order=last"]
    assert rows[1]["choices"] == {"0.25": 1.0, "0.5": 0.0, "0.75": 0.0, "1.0": 0.0}
    assert rows[2]["choices"]["0.5"] == 1.0  # type: ignore[index]
    assert "narrow" in json.loads(slim("router", "list", "--json", site=site).stdout)


def test_a_router_from_a_file_is_compared(router_file: Path) -> None:
    (row,) = compared(f"{router_file}:NarrowRouter:0.75")
    assert row["choices"]["0.75"] == 1.0  # type: ignore[index]


def test_a_mistake_in_an_option_is_one_clear_line(router_file: Path) -> None:
    for option, says in {"order=up": "give one of first, last", "speed=1": "its options: width"}.items():
        done = slim("simulate", "--router", f"{router_file}:NarrowRouter:{option}")
        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_of_a_router_from_a_file_is_replayed(router_file: Path, tmp_path: Path) -> None:
    spec, out = f"{router_file}:NarrowRouter", str(tmp_path / "run")
    assert (
        slim("simulate", "--router", spec, "--rate", "500", "--seconds", "0.3", "--out", out).returncode == 0
    )
    assert json.loads(slim("replay", out, "--json").stdout)["same"]


def test_a_router_from_a_file_serves(router_file: Path, own_server: Callable[..., Served]) -> None:
    served = own_server("--router", f"{router_file}:NarrowRouter:width=0.5")
    with Client(f"http://{served.http}") as client:
        answer = client.classify(np.zeros((1, 3, 32, 32), dtype=np.uint8))
    assert set(answer.receipt["choices"].split(",")) == {"0.5"}
    assert served.stop() == 0
