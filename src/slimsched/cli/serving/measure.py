"""Commands that measure on real devices: `slim profile` a device, `slim validate` the simulator."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, Seed, need, with_options
from slimsched.cli.progress import cell_bar
from slimsched.cli.serving.scenario import (
    Data,
    GoalText,
    LiveScenarioOptions,
    RouterSpec,
    check_goal,
    check_reach,
)
from slimsched.core.config import (
    Amount,
    ConfigError,
    Count,
    CountOrZero,
    Factor,
    Percentage,
    Repeats,
    RunSeconds,
    SlimError,
    ThreadCount,
    convert,
)
from slimsched.models.spec import DEFAULT_MODEL
from slimsched.serving.scenario.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.domain.model import ServedModel
    from slimsched.serving.measure.profile import Profiler
    from slimsched.serving.measure.validate import Validation

# -- `slim validate`: live against simulated.


class ValidateOptions(Struct, frozen=True, kw_only=True):
    """What to run, live and simulated."""

    router: RouterSpec = "sed"
    goal: GoalText = None
    loads: Annotated[
        str, typer.Option("--loads", help="Loads, as shares of the capacity with the widest plans.")
    ] = "0.3,0.7,0.95"
    seconds: Annotated[RunSeconds, typer.Option("--seconds", help="Length of each live run.")] = 20.0
    data: Data = None
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--as-configured",
            help="Measure first what serving costs beyond the profiles, or use the scenario's figures.",
        ),
    ] = True
    seed: Seed = 0

    def shares(self) -> list[float]:
        """Read the loads."""
        try:
            return convert([float(word) for word in self.loads.split(",")], list[Factor], "--loads")
        except ValueError:
            raise ConfigError(f"--loads '{self.loads}' is not understood; write it as 0.3,0.7") from None


@with_options
def validate_command(
    scenario: LiveScenarioOptions, validated: ValidateOptions, as_json: AsJson = False
) -> None:
    """Run the same arrivals live on this machine and simulated, and print the simulator's error.

    A separate run, at half of the largest load and with other arrivals, first measures what batches cost in
    service beyond their profiles (the server's own work, shared cores, cold caches), and the processor time
    of the gateway per event and per request. The simulation knows nothing else of the live runs.

    Example:

      slim validate --scenario laptop --loads 0.3,0.7 --json
    """
    need("torch")
    check_goal(validated.goal, [validated.router])
    chosen = scenario.read(validated.goal).scenario
    check_reach([validated.router], chosen)
    validation, kind = _run(chosen, validated)
    if as_json:
        rows = {
            "scenario": chosen.name,
            "router": validated.router,
            "examples": kind,
            **msgspec.to_builtins(validation),
        }
        print(json.dumps(rows, indent=1))
    else:
        _print_validation(Console(), chosen, validation)
        Console().print(f"router {validated.router}, {kind}, {validated.seconds:g} s per run")


def _run(scenario: Scenario, validated: ValidateOptions) -> "tuple[Validation, str]":
    """Run live and simulated; return the comparison, and what the examples were."""
    from slimsched.cli.serving.scenario import describe, examples_of
    from slimsched.serving.measure.validate import Validator

    shares = validated.shares()
    examples = examples_of(scenario.cluster.models, validated.data)
    with Console(stderr=True).status("starting") as status:
        validator = Validator(
            scenario,
            validated.router,
            examples,
            seconds=validated.seconds,
            seed=validated.seed,
            progress=status.update,
        )
        return validator.validate(shares, calibrate=validated.calibrate), describe(examples)


def _print_validation(console: Console, scenario: Scenario, validation: "Validation") -> None:
    from slimsched.serving.measure.validate import FIGURES

    table = Table("load", "figure", "live", "simulated", "error", "at the run's own speed")
    for row in validation.loads:
        for name in FIGURES:
            errors = [f"{100 * one[name]:+.1f} %" for one in (row.error, row.error_at_own_speed)]
            table.add_row(
                f"{row.load:.0%}", name, f"{row.live[name]:.4g}", f"{row.simulated[name]:.4g}", *errors
            )
    console.print(table)
    for server, cost in zip(scenario.cluster.names, validation.costs, strict=False):
        text = f"{server}: a batch takes {1e3 * cost.overhead_s:.2f} ms + {cost.slowdown:.2f} × its profile"
        console.print(text, highlight=False)
    gateway = validation.gateway
    text = f"the gateway takes {1e6 * gateway.event_s:.0f} µs per event + {1e6 * gateway.request_s:.0f} µs"
    console.print(f"{text} per request in it", highlight=False)
    console.print(f"a message between gateway and server takes {1e3 * validation.message_s:.2f} ms")


# -- `slim profile`: measure a device into a profile.


def profile_path(path: Path | None) -> Path | None:
    """Refuse a profile that could not be found again."""
    if path is not None and (path.suffix != ".json" or path.is_dir()):
        raise ConfigError(f"--out {path} is no name for a profile; end it in .json")
    return path


CPU_BATCHES = "1,2,4,8,16,32"
CUDA_BATCHES = "1,2,4,8,16,32,64,128,256"


DEFAULT_NAMES = {"cpu": "cpu-core", "cuda": "cuda"}
"""What the device is called, unless the user says so: the shipped scenario laptop looks for cpu-core."""


class DeviceOptions(Struct, frozen=True, kw_only=True):
    """Which device to measure."""

    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="What to measure.")] = "cpu"
    threads: Annotated[
        ThreadCount, typer.Option("--threads", help="CPU threads that the device may use.")
    ] = 1
    gpu: Annotated[CountOrZero, typer.Option("--gpu", help="Number of the GPU, as nvidia-smi counts.")] = 0
    mps: Annotated[Percentage, typer.Option("--mps", help="Share of the GPU under MPS, in per cent.")] = 100
    idle_w: Annotated[Amount, typer.Option("--idle-w", help="Idle power, where no meter can read it.")] = 5.0
    active_w: Annotated[
        Amount, typer.Option("--active-w", help="Power above idle while busy, where no meter can read it.")
    ] = 10.0


class MeasureOptions(Struct, frozen=True, kw_only=True):
    """What to measure, and how often."""

    batches: Annotated[
        str,
        typer.Option("--batches", help=f"Batch sizes to measure; by default {CPU_BATCHES}, on a GPU to 256."),
    ] = ""
    repeats: Annotated[
        Repeats, typer.Option("--repeats", help="Timed runs per cell, after two to warm up.")
    ] = 7

    def sizes(self, device: str) -> tuple[int, ...]:
        """Read the batch sizes."""
        return _sizes(self.batches or (CPU_BATCHES if device == "cpu" else CUDA_BATCHES))


@with_options
def profile_command(
    device: DeviceOptions,
    measured: MeasureOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=profile_path,
            help="Where to write the profile (.json); by default the model's folder.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="The device's name in scenarios; by default cpu-core or cuda.")
    ] = "",
    model: Annotated[
        str, typer.Option("--model", metavar="DIR", help="The model: a folder, or a shipped model's name.")
    ] = DEFAULT_MODEL,
) -> None:
    """Measure latency, energy and memory of every step of a model on this device.

    An interrupted run continues where it stopped: FILE.part keeps what was measured. On a GPU, batches also
    run two and four at a time. A share below 100 per cent needs the MPS daemon (nvidia-cuda-mps-control -d).

    Examples:

      slim profile --model my-model

      slim profile --out my-cpu.json --name my-cpu --threads 1

      slim profile --device cuda --mps 50 --out my-gpu-50.json
    """
    measure(device, measured, out, name, model)


def measure(
    device: DeviceOptions, measured: MeasureOptions, out: Path | None, name: str, source: str
) -> None:
    """Measure a model on a device, with a bar, and write the profile."""
    from slimsched.serving.scenario.files import read_model

    need("torch")
    model = read_model(source, rated=False)
    name = name or (DEFAULT_NAMES[device.device] if out is None else out.stem)
    if out is None:
        if not model.folder:
            raise ConfigError(
                f"'{source}' is shipped and has no folder of yours; "
                f"say where to write: slim profile --model {source} --out FILE.json"
            )
        out = Path(model.folder) / "profiles" / f"{name}.json"
    part = out.with_suffix(".part")
    out.parent.mkdir(parents=True, exist_ok=True)
    sizes = measured.sizes(device.device)
    profiler, origin, facts = OPENERS[device.device](model, part, sizes, device, measured.repeats)
    with cell_bar("warming up", profiler.cells) as bar:
        profiler.measure(
            lambda cell: bar.update(bar.task_ids[0], advance=1, description=f"{cell[0]}, batch {cell[1]}")
        )
    record = profiler.record(name, origin, {**facts, **_software()})
    out.write_bytes(msgspec.json.encode(record))
    part.unlink(missing_ok=True)
    Console().print(f"written: {out}; energy {record.energy_source}; spread {100 * record.spread:.0f} %")


def _open_cpu(
    model: "ServedModel", part: Path, sizes: tuple[int, ...], device: DeviceOptions, repeats: int
) -> "tuple[Profiler, str, dict[str, str]]":
    """Return a profiler of the CPU, what the profile says of its source, and facts about the device."""
    import torch

    from slimsched.serving.live.executor import CpuExecutor
    from slimsched.serving.live.sensors import open_meter
    from slimsched.serving.live.server import host_models
    from slimsched.serving.measure.profile import MeasuringPlan, Profiler

    threads = device.threads
    plan = MeasuringPlan(batches=sizes, concurrency=(1,), repeats=repeats, active_w=device.active_w)
    hosted = host_models([model], torch.device("cpu"))
    executor, meter = CpuExecutor(hosted, threads=threads), open_meter("cpu", device.idle_w)
    facts = {"kind": "cpu", "processor": _processor(), "threads": str(threads)}
    profiler = Profiler(executor, model, meter, plan, part, device.idle_w)
    return profiler, f"measured: {facts['processor']}, {threads} thread(s)", facts


def _open_cuda(
    model: "ServedModel", part: Path, sizes: tuple[int, ...], device: DeviceOptions, repeats: int
) -> "tuple[Profiler, str, dict[str, str]]":
    """Return a profiler of a share of a GPU, what the profile says of its source, and facts about the GPU."""
    _prepare_cuda(device)

    import time

    import torch

    from slimsched.serving.live.cuda import CudaExecutor, cuda_device
    from slimsched.serving.live.sensors import Modelled, open_nvml
    from slimsched.serving.live.server import host_models
    from slimsched.serving.measure.profile import MeasuringPlan, Profiler, mean_power_w

    mps = device.mps
    executor = CudaExecutor(host_models([model], cuda_device()), batch_limit=sizes[-1])
    meter = open_nvml(device.gpu) or Modelled(0.0)
    plan = MeasuringPlan(batches=sizes, concurrency=(1, 2, 4), repeats=repeats, cell_s=0.02)
    idle_w = mean_power_w(meter, lambda: time.sleep(0.01), at_least_s=0.5)
    properties = torch.cuda.get_device_properties(0)
    facts = {
        "kind": "cuda",
        "gpu": properties.name,
        "mps_percentage": str(mps),
        "multiprocessors": str(properties.multi_processor_count),
        "idle_w": f"{idle_w:.1f} of the whole GPU; idle_w of this profile is the share of it",
    }
    source = f"measured: {facts['gpu']}, {mps} % under MPS" if mps < 100 else f"measured: {facts['gpu']}"
    return Profiler(executor, model, meter, plan, part, idle_w, share=mps / 100), source, facts


def _prepare_cuda(device: DeviceOptions) -> None:
    """Say which GPU, and which share of it, CUDA is to use; it reads this when it starts."""
    from slimsched.serving.live.sensors import mps_is_running

    if device.mps < 100 and not mps_is_running():
        raise SlimError("the MPS daemon does not run; start it with: nvidia-cuda-mps-control -d")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(device.gpu)
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(device.mps)


OPENERS = {"cpu": _open_cpu, "cuda": _open_cuda}


def _sizes(batches: str) -> tuple[int, ...]:
    try:
        sizes = tuple(convert([int(word) for word in batches.split(",")], list[Count], "--batches"))
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
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
