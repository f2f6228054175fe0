"""Figures 1 to 3: memory and utilization, energy, latency of a GPU; the shipped measurement or a new one."""

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.core.config import UNREADABLE, Amount, Bytes, Count, DataError, Seconds, SlimError
from slimsched.dashboard.pictures import shades
from slimsched.models.slimresnet.shape import SLIM_RESNET


class FigurePoint(Struct, frozen=True, kw_only=True):
    """One setting and its figures; `load` is the share of the device's capacity, 0 in a closed loop."""

    plan: str
    batch: Count
    load: Amount
    utilization: Amount
    latency_mean_s: Seconds
    latency_p99_s: Seconds
    segment_s: tuple[Seconds, ...]  # mean time of a batch by segment
    segment_bytes: tuple[Bytes, ...]  # memory of each segment's instance
    images_per_s: Amount
    power_w: Amount


class DeviceFigures(Struct, frozen=True, kw_only=True):
    """Both sweeps with a description of the device."""

    device: dict[str, str]
    idle_w: Amount
    batch_sweep: list[FigurePoint]
    load_sweep: list[FigurePoint]


SEGMENTS = len(SLIM_RESNET.blocks)
SHIPPED = Path(__file__).with_name("figures-h200.json")
MPS_PERCENTAGE = 25
"""A quarter of the GPU: the whole of an H200 is faster at the narrow widths than Python can feed it."""

BATCHES = (1, 4, 16, 64, 128, 256)
BLOCK, LANES = 256, 4
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.2)
"""Batch sizes of the closed loop; blocks, lanes and shares of the capacity of the open one.

Large blocks on four lanes leave the GPU no gap: with two lanes of 64 images it waits for the host in an
eighth of the time, however high the load.
"""
LIMIT_S = 80.0
"""No point is begun after this time, so that a measurement fits into 100 seconds."""

TITLES = {
    "fig1": "Figure 1: memory and utilization against batch size",
    "fig2": "Figure 2: energy against utilization",
    "fig3": "Figure 3: latency against utilization",
}


def reproduce(name: str, *, live: bool, out: Path | None) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Return one figure's points, and a function that shows them; draw it where a folder is given."""
    figures = measured(out) if live else read(SHIPPED)
    points = figures.batch_sweep if name == "fig1" else figures.load_sweep
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        plot(name, figures, out / f"{name}.png")

    def show(console: Console) -> None:
        columns, cells = COLUMNS[name]
        table = Table(*columns, title=TITLES[name], title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        for point in points:
            table.add_row(*cells(point, figures.idle_w))
        console.print(table)
        console.print(", ".join(f"{key}: {value}" for key, value in figures.device.items()))

    rows = {"device": figures.device, "idle_w": figures.idle_w, "points": msgspec.to_builtins(points)}
    return rows, show


def read(path: Path) -> DeviceFigures:
    """Read a measurement that `--live` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DeviceFigures)
    except UNREADABLE as error:
        raise DataError(f"{path.name} holds no measurement: {error}; make one with --live") from None


@cache
def measured(out: Path | None) -> DeviceFigures:
    """Measure the GPU of this machine once; leave the measurement in the folder, if there is one."""
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(MPS_PERCENTAGE)  # read when CUDA starts
    import time

    from device_sweep import DeviceWatch, Sweep, open_gpu

    from slimsched.serving.live.cuda import CudaExecutor, cuda_device
    from slimsched.serving.live.server import host_models
    from slimsched.serving.measure.profile import mean_power_w
    from slimsched.serving.scenario.files import shipped_model

    gpu = open_gpu(0)
    if gpu is None:
        raise SlimError("NVML is not there; figures 1 to 3 need an NVIDIA GPU: leave --live out")
    model = shipped_model()
    hosted = host_models([model], cuda_device())
    CudaExecutor(hosted, buckets=(1,))  # start CUDA before idle power is read
    idle_w = mean_power_w(gpu[0], lambda: time.sleep(0.01), at_least_s=0.5)
    plans = tuple(model.tree.stay((int(choice),)) for choice in model.tree.choices[0])
    sweep = Sweep(
        model=model,
        plans=plans,
        batches=BATCHES,
        block=BLOCK,
        lanes=LANES,
        loads=LOADS,
        seconds=1.0,
        limit_s=LIMIT_S,
    )
    by_batch, by_load = sweep.measure(
        lambda batch: CudaExecutor(hosted, buckets=(batch,)),
        lambda: DeviceWatch(*gpu, settle_s=0.3),
        lambda what: print(what, file=sys.stderr),
    )
    facts = {
        **_gpu_facts(),
        "block": f"{sweep.block} images, {sweep.lanes} lanes",
        "utilization": gpu[1].source,
        "power": gpu[0].source,
    }
    figures = DeviceFigures(device=facts, idle_w=idle_w, batch_sweep=by_batch, load_sweep=by_load)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "figures.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1))
    return figures


def _gpu_facts() -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "mps_percentage": str(MPS_PERCENTAGE),
        "torch": str(torch.__version__),
        "date": datetime.now(UTC).date().isoformat(),
    }


def plot(name: str, figures: DeviceFigures, path: Path) -> None:
    """Draw one of the figures."""
    from slimsched.core.plots import pyplot

    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    gpu, share = figures.device["gpu"], figures.device["multiprocessors"]
    figure.suptitle(f"{TITLES[name]}; {gpu}, {share} multiprocessors")
    PLOTS[name](axes, figures)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _plot_memory(axes: Any, figures: DeviceFigures) -> None:
    widest = [point for point in figures.batch_sweep if _width(point) == "1.0"]
    for segment in range(SEGMENTS):
        megabytes = [point.segment_bytes[segment] / 1e6 for point in widest]
        axes[0].plot([point.batch for point in widest], megabytes, marker="o", label=f"segment {segment}")
    axes[0].set(xscale="log", yscale="log", xlabel="batch size", ylabel="MB per instance, width 1.0")
    axes[0].legend()
    _by_width(
        axes[1],
        figures.batch_sweep,
        lambda point: point.batch,
        lambda point: 100 * point.utilization,
    )
    axes[1].set(xscale="log", xlabel="batch size", ylabel="utilization (%), closed loop", ylim=(0, 105))


def _plot_energy(axes: Any, figures: DeviceFigures) -> None:
    idle_w = figures.idle_w
    _by_width(axes[0], figures.load_sweep, _utilization, lambda p: 1000 * p.power_w / p.images_per_s)
    axes[0].set(xlabel="utilization (%)", ylabel="mJ per image, idle power included", yscale="log")
    _by_width(axes[1], figures.load_sweep, _utilization, lambda p: p.power_w - idle_w)
    axes[1].set(xlabel="utilization (%)", ylabel=f"power above idle ({idle_w:.0f} W)")


def _plot_latency(axes: Any, figures: DeviceFigures) -> None:
    open_points = [point for point in figures.load_sweep if point.load]
    _by_width(axes[0], open_points, _utilization, lambda p: 1000 * p.latency_mean_s)
    axes[0].set(xlabel="utilization (%)", ylabel="mean latency (ms), waiting included", yscale="log")
    widest = sorted((p for p in open_points if _width(p) == "1.0"), key=_utilization)
    for segment in range(SEGMENTS):
        times = [1000 * point.segment_s[segment] for point in widest]
        axes[1].plot(list(map(_utilization, widest)), times, marker="o", label=f"segment {segment}")
    axes[1].set(xlabel="utilization (%)", ylabel="ms per batch in a segment, width 1.0")
    axes[1].legend()


def _width(point: FigurePoint) -> str:
    """The width of a plan that stays at one."""
    return point.plan.partition(",")[0]


def _utilization(point: FigurePoint) -> float:
    return 100 * point.utilization


def _by_width(
    axes: Any,
    points: list[FigurePoint],
    x: Callable[[FigurePoint], float],
    y: Callable[[FigurePoint], float],
) -> None:
    widths = sorted(set(map(_width, points)), key=float)
    for width, colour in zip(widths, shades(len(widths)), strict=True):
        mine = sorted((point for point in points if _width(point) == width), key=x)
        axes.plot([x(p) for p in mine], [y(p) for p in mine], marker="o", label=width, color=colour)
    axes.legend(title="width")


def _memory_cells(point: FigurePoint, idle_w: float) -> list[str]:
    sizes = [f"{size / 1e6:.1f}" for size in point.segment_bytes]
    return [_width(point), str(point.batch), f"{100 * point.utilization:.0f}", *sizes]


def _load_cells(point: FigurePoint) -> list[str]:
    load = f"{100 * point.load:.0f}" if point.load else "closed loop"
    return [_width(point), load, f"{100 * point.utilization:.0f}"]


def _energy_cells(point: FigurePoint, idle_w: float) -> list[str]:
    above = 1000 * max(0.0, point.power_w - idle_w) / point.images_per_s
    return [
        *_load_cells(point),
        f"{point.power_w:.0f}",
        f"{1000 * point.power_w / point.images_per_s:.2f}",
        f"{above:.2f}",
    ]


def _latency_cells(point: FigurePoint, idle_w: float) -> list[str]:
    return [
        *_load_cells(point),
        f"{1000 * point.latency_mean_s:.2f}",
        f"{1000 * point.latency_p99_s:.2f}",
        *(f"{1000 * seconds:.2f}" for seconds in point.segment_s),
    ]


_SEGMENTS = tuple(f"segment {segment}" for segment in range(SEGMENTS))
Cells = Callable[[FigurePoint, float], list[str]]
COLUMNS: dict[str, tuple[tuple[str, ...], Cells]] = {
    "fig1": (("width", "batch", "util %", *(f"{name}, MB" for name in _SEGMENTS)), _memory_cells),
    "fig2": (("width", "load %", "util %", "W", "mJ/image", "above idle"), _energy_cells),
    "fig3": (
        ("width", "load %", "util %", "mean ms", "p99 ms", *(f"{name}, ms" for name in _SEGMENTS)),
        _latency_cells,
    ),
}
PLOTS: dict[str, Callable[[Any, DeviceFigures], None]] = {
    "fig1": _plot_memory,
    "fig2": _plot_energy,
    "fig3": _plot_latency,
}
