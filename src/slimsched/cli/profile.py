"""`slim profile`: measure a device into a profile."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slimsched.errors import ConfigError


def command(
    out: Annotated[Path, typer.Option("--out", help="Where to write the profile (.json).")],
    name: Annotated[str, typer.Option("--name", help="The device's name in scenarios.")] = "",
    threads: Annotated[int, typer.Option("--threads", help="CPU threads the device may use.")] = 1,
    batches: Annotated[str, typer.Option("--batches", help="Batch sizes to measure.")] = "1,2,4,8,16,32",
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs a cell, after two to warm up.")] = 7,
    idle_w: Annotated[float, typer.Option("--idle-w", help="Idle power where no meter can read it.")] = 5.0,
    active_w: Annotated[
        float, typer.Option("--active-w", help="Power above idle while busy, likewise.")
    ] = 10.0,
) -> None:
    """Measure latency, energy and memory of every key on this device.

    An interrupted run goes on where it stopped (FILE.part keeps what was measured).

    Example:

      slim profile --out my-cpu.json --name my-cpu --threads 1
    """
    import torch

    from slimsched.execution.live.cpu_executor import CpuExecutor
    from slimsched.execution.live.power_meter import open_meter
    from slimsched.execution.live.profiler import Plan, Profiler
    from slimsched.slimmable.weights import load

    try:
        sizes = tuple(int(word) for word in batches.split(","))
    except ValueError:
        raise ConfigError(f"--batches '{batches}' is not understood; write it as 1,2,4,8") from None
    if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
        raise ConfigError(f"--batches {batches}: sizes must rise from 1, as in 1,2,4,8")
    model = load()
    executor = CpuExecutor(model, threads=threads)
    plan = Plan(batches=sizes, concurrency=(1,), repeats=repeats, active_w=active_w)
    part = out.with_suffix(".part")
    meter = open_meter("cpu", idle_w)
    profiler = Profiler(executor, model.card.shape, meter, plan, part, idle_w)
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("warming up", total=len(plan))
        profiler.measure(lambda cell: bar.update(task, advance=1, description=f"{cell[0]}, batch {cell[1]}"))
    device = {
        "kind": "cpu",
        "processor": _processor(),
        "threads": str(threads),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    record = profiler.record(
        name or out.stem, f"measured: {device['processor']}, {threads} thread(s)", device
    )
    out.write_bytes(msgspec.json.encode(record))
    part.unlink(missing_ok=True)
    Console().print(f"written: {out}; energy {record.energy_source}; spread {100 * record.spread:.0f} %")


def _processor() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
