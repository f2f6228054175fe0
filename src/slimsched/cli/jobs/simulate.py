"""`slim jobs simulate`: one policy on one trace."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.jobs.results import Results, write_log
from slimsched.cli.jobs.table import flat, print_rows
from slimsched.cli.jobs.workload import PolicyName, Workload, progress_bar
from slimsched.cli.options import AsJson, with_options
from slimsched.cli.output_path import file_to_write
from slimsched.core.log import EVENTS

if TYPE_CHECKING:
    from slimsched.jobs.simulated.comparison import JobRow, JobSetting

REPORT_EVERY = 64
"""Finished jobs between two updates of the progress bar."""


@with_options
def simulate(
    workload: Workload,
    results: Results,
    policy: PolicyName = "dally",
    log: Annotated[
        Path | None, typer.Option("--log", callback=file_to_write, help="Write the event log to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one policy on a trace.

    With --out the folder also holds the event log: slim replay checks every decision in it.

    Examples:

      slim jobs simulate --trace generated --jobs 3000 --policy dally

      slim jobs simulate --trace tiresias --policy fifo --gpus 16

      slim jobs simulate --trace my_sacct.txt --cluster my_racks.csv --network oversubscribed --plot run.png

      slim jobs simulate --jobs 500 --out runs/dally && slim report runs/dally
    """
    from slimsched.jobs.simulated import comparison

    setting, jobs = workload.prepare()
    text = f"{policy} on {workload.trace}"
    with progress_bar(text, total=len(jobs), quiet=as_json) as show:

        def finished(count: int) -> None:
            if count % REPORT_EVERY == 0:
                show(count, text)

        run = comparison.simulate(policy, jobs, setting, workload.seed, None if as_json else finished)
    summary, histories, entries = run
    row = comparison.average([summary], network=setting.network, arrivals=setting.arrivals)
    results.write(workload, setting, {policy: (summary, histories)}, [flat(row)])
    logs = [results.out / EVENTS] if results.out else []
    for path in [*logs, *([log] if log else [])]:
        write_log(path, policy, setting, entries)
    _show(row, setting, workload.trace, as_json=as_json)
    if not as_json:
        for path in [*results.written(), *([log] if log else [])]:
            Console().print(f"written: {path}")


def _show(row: "JobRow", setting: "JobSetting", trace: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**msgspec.to_builtins(row.summary), **_setting(row)}, indent=1))
        return
    title = f"{trace} on {setting.cluster} ({setting.topology.gpus} GPUs), {setting.network}"
    print_rows(Console(), [row], f"{title}, {setting.arrivals}")


def _setting(row: "JobRow") -> dict[str, object]:
    return {"network": row.network, "arrivals": row.arrivals, "told_durations": row.told_durations}
