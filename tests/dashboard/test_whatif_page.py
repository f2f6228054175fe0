"""The page of `slim jobs whatif` in a real browser, on a desk and on a phone."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from two_model_run import slim

BEGIN = datetime(2026, 11, 1)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What would have been with sixty jobs of three users on two racks."""
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "slurm.conf").write_text("SchedulerType=sched/builtin\nNodeName=n[1-4] Gres=gpu:8\n")
    (folder / "topology.conf").write_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n")
    rows = ["JobID|JobName|User|Partition|Submit|Start|End|State|AllocTRES|TimelimitRaw|NodeList"]
    for i in range(60):
        came, start, end = (
            (BEGIN + timedelta(minutes=at)).isoformat() for at in (5 * i, 8 * i, 8 * i + 20 + i % 7)
        )
        gpus, where = ((1, "n1"), (4, "n2"), (8, "n3"), (16, "n[3-4]"))[i % 4]
        model, user = ("bert", "lm", "imagenet")[i % 3], ("ann", "bob", "eve")[i % 3]
        rows.append(f"{i}|{model}|{user}|main|{came}|{start}|{end}|COMPLETED|gres/gpu={gpus}|120|{where}")
    (folder / "sacct.txt").write_text("\n".join(rows) + "\n")
    named = [
        f"--{option}={folder / name}" for option, name in (("sacct", "sacct.txt"), ("nodes", "slurm.conf"))
    ]
    slim("jobs", "whatif", *named, f"--topology={folder / 'topology.conf'}", f"--out={folder / 'page.html'}")
    return folder / "page.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen_and_shows_every_part(
    page: Path, browser: Any, keep: Callable[[str], None], width: int
) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    heads = [head.text for head in browser.find_elements("css selector", "h2")]
    assert heads[:2] == ["In short", "Does the simulated present agree with the records?"]
    assert {"Who gains, by user", "Change of completion time by size", "How to read this"} <= set(heads)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    keep(f"whatif-{width}")
