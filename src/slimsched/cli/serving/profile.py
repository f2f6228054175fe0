"""`slim profile`: measure a device into a profile."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slimsched.kernel.errors import ConfigError, SlimError

if TYPE_CHECKING:
    from slimsched.models.slimresnet.weights import TrainedModel
    from slimsched.serving.execution.live.profiler import Profiler

CPU_BATCHES = "1,2,4,8,16,32"
CUDA_BATCHES = "1,2,4,8,16,32,64,128,256"


def command(
    out: Annotated[Path, typer.Option("--out", help="Where to write the profile (.json).")],
    name: Annotated[str, typer.Option("--name", help="The device's name in scenarios.")] = "",
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="What to measure.")] = "cpu",
    threads: Annotated[int, typer.Option("--threads", help="CPU threads the device may use.")] = 1,
    gpu: Annotated[int, typer.Option("--gpu", help="Number of the GPU, as nvidia-smi counts.")] = 0,
    mps: Annotated[int, typer.Option("--mps", help="Share of the GPU under MPS, in per cent.")] = 100,
    batches: Annotated[
        str,
        typer.Option("--batches", help=f"Batch sizes to measure; else {CPU_BATCHES}, on a GPU up to 256."),
    ] = "",
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs a cell, after two to warm up.")] = 7,
    idle_w: Annotated[float, typer.Option("--idle-w", help="Idle power where no meter can read it.")] = 5.0,
    active_w: Annotated[
        float, typer.Option("--active-w", help="Power above idle while busy, likewise.")
    ] = 10.0,
) -> None:
    """Measure latency, energy and memory of every key on this device.

    An interrupted run goes on where it stopped (FILE.part keeps what was measured). On a GPU batches also run
    two and four at a time. A share below 100 per cent needs the MPS daemon (nvidia-cuda-mps-control -d).

    Examples:

      slim profile --out my-cpu.json --name my-cpu --threads 1

      slim profile --device cuda --mps 50 --out my-gpu-50.json
    """
    from slimsched.models.slimresnet.weights import load

    sizes = _sizes(batches or (CPU_BATCHES if device == "cpu" else CUDA_BATCHES))
    part = out.with_suffix(".part")
    model = load()
    if device == "cpu":
        profiler, facts = _cpu(model, part, sizes, threads, repeats, idle_w, active_w)
        source = f"measured: {facts['processor']}, {threads} thread(s)"
    else:
        profiler, facts = _cuda(model, part, sizes, gpu, mps, repeats)
        source = f"measured: {facts['gpu']}, {mps} % under MPS" if mps < 100 else f"measured: {facts['gpu']}"
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("warming up", total=profiler.cells)
        profiler.measure(lambda cell: bar.update(task, advance=1, description=f"{cell[0]}, batch {cell[1]}"))
    record = profiler.record(name or out.stem, source, {**facts, **_software()})
    out.write_bytes(msgspec.json.encode(record))
    part.unlink(missing_ok=True)
    Console().print(f"written: {out}; energy {record.energy_source}; spread {100 * record.spread:.0f} %")


def _cpu(
    model: "TrainedModel",
    part: Path,
    sizes: tuple[int, ...],
    threads: int,
    repeats: int,
    idle_w: float,
    active_w: float,
) -> "tuple[Profiler, dict[str, str]]":
    from slimsched.serving.execution.live.cpu_executor import CpuExecutor
    from slimsched.serving.execution.live.power_meter import open_meter
    from slimsched.serving.execution.live.profiler import Plan, Profiler

    plan = Plan(batches=sizes, concurrency=(1,), repeats=repeats, active_w=active_w)
    executor, meter = CpuExecutor(model, threads=threads), open_meter("cpu", idle_w)
    facts = {"kind": "cpu", "processor": _processor(), "threads": str(threads)}
    return Profiler(executor, model.card.shape, meter, plan, part, idle_w), facts


def _cuda(
    model: "TrainedModel", part: Path, sizes: tuple[int, ...], gpu: int, mps: int, repeats: int
) -> "tuple[Profiler, dict[str, str]]":
    from slimsched.serving.execution.live.power_meter import mps_is_running, open_nvml

    if not 1 <= mps <= 100:
        raise ConfigError(f"--mps {mps}: give a share from 1 to 100 per cent")
    if mps < 100 and not mps_is_running():
        raise SlimError("the MPS daemon does not run; start it with: nvidia-cuda-mps-control -d")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(mps)  # read when CUDA starts

    import time

    import torch

    from slimsched.serving.execution.live.cuda_executor import CudaExecutor
    from slimsched.serving.execution.live.power_meter import Modelled
    from slimsched.serving.execution.live.power_window import mean_power_w
    from slimsched.serving.execution.live.profiler import Plan, Profiler

    executor = CudaExecutor(model, batch_limit=sizes[-1])
    meter = open_nvml(gpu) or Modelled(0.0)
    plan = Plan(batches=sizes, concurrency=(1, 2, 4), repeats=repeats, cell_s=0.02)
    idle_w = mean_power_w(meter, lambda: time.sleep(0.01), at_least_s=0.5)
    found = torch.cuda.get_device_properties(0)
    facts = {
        "kind": "cuda",
        "gpu": found.name,
        "mps_percentage": str(mps),
        "multiprocessors": str(found.multi_processor_count),
        "idle_w": f"{idle_w:.1f} of the whole GPU; idle_w of this profile is the share of it",
    }
    return Profiler(executor, model.card.shape, meter, plan, part, idle_w, share=mps / 100), facts


def _sizes(batches: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(word) for word in batches.split(","))
    except ValueError:
        raise ConfigError(f"--batches '{batches}' is not understood; write it as 1,2,4,8") from None
    if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
        raise ConfigError(f"--batches {batches}: sizes must rise from 1, as in 1,2,4,8")
    return sizes


def _software() -> dict[str, str]:
    import torch

    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
