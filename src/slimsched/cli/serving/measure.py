"""Commands that measure on real devices: `slim profile` a device, `slim validate` the simulator."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, GoalText, Seed, need, with_options
from slimsched.cli.progress import cell_bar
from slimsched.cli.serving.scenario import (
    Data,
    LiveScenarioOptions,
    RouterSpec,
    describe,
    examples_of,
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
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.profile import ACTIVE_W, IDLE_W
from slimsched.serving.live.engine import environment
from slimsched.serving.live.sensors import mps_is_running
from slimsched.serving.routers.registry import check_goal, check_reach
from slimsched.serving.scenario.files import read_model
from slimsched.serving.scenario.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.measure.validate import Validation

# -- `slim validate`: live against simulated.


class ValidateOptions(Struct, frozen=True, kw_only=True):
    """What to run, live and simulated."""

    router: RouterSpec = "sed"
    goal: GoalText = None
    loads: Annotated[str, "Loads, as shares of the capacity with the widest plans."] = "0.3,0.7,0.95"
    seconds: Annotated[RunSeconds, "Length of each live run."] = 20.0
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
    from slimsched.serving.measure.validate import Validator

    check_goal(validated.goal, [validated.router])
    chosen = scenario.read(validated.goal).scenario
    check_reach([validated.router], chosen.cluster)
    shares, examples = validated.shares(), examples_of(chosen.cluster.models, validated.data)
    kind = describe(examples)
    with Console(stderr=True).status("starting") as status:
        validator = Validator(
            scenario=chosen,
            router=validated.router,
            examples=examples,
            seconds=validated.seconds,
            seed=validated.seed,
            progress=status.update,
        )
        validation = validator.validate(shares, calibrate=validated.calibrate)
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
    """Which device to measure, how often, and what it is called."""

    device: Annotated[Literal["cpu", "cuda"], "What to measure."] = "cpu"
    threads: Annotated[ThreadCount, "CPU threads that the device may use."] = 1
    gpu: Annotated[CountOrZero, "Number of the GPU, as nvidia-smi counts."] = 0
    mps: Annotated[Percentage, "Share of the GPU under MPS, in per cent."] = 100
    idle_w: Annotated[Amount, "Idle power, where no meter can read it."] = IDLE_W
    active_w: Annotated[Amount, "Power above idle while busy, where no meter can read it."] = ACTIVE_W
    batches: Annotated[str, f"Batch sizes to measure; by default {CPU_BATCHES}, on a GPU to 256."] = ""
    repeats: Annotated[Repeats, "Timed runs per cell, after two to warm up."] = 7
    name: Annotated[str, "The device's name in scenarios; by default cpu-core or cuda."] = ""

    @property
    def host(self) -> Host:
        """What a server on it would use."""
        return Host(kind=self.device, threads=self.threads, gpu=self.gpu, mps_percentage=self.mps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes."""
        text = self.batches or (CPU_BATCHES if self.device == "cpu" else CUDA_BATCHES)
        try:
            sizes = tuple(convert([int(word) for word in text.split(",")], list[Count], "--batches"))
        except ValueError:
            raise ConfigError(f"--batches '{text}' is not understood; write it as 1,2,4,8") from None
        if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
            raise ConfigError(f"--batches {text}: sizes must rise from 1, as in 1,2,4,8")
        return sizes


@with_options
def profile_command(
    options: DeviceOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=profile_path,
            help="Where to write the profile (.json); by default the model's folder.",
        ),
    ] = None,
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
    measure(options, out, model)


def measure(options: DeviceOptions, out: Path | None, source: str) -> None:
    """Measure a model on a device, with a bar, and write the profile."""
    need("torch")
    sizes, host, model = options.sizes, options.host, read_model(source, rated=False)
    name = options.name or (DEFAULT_NAMES[host.kind] if out is None else out.stem)
    if out is None:
        if not model.folder:
            raise ConfigError(
                f"'{source}' is shipped and has no folder of yours; "
                f"say where to write: slim profile --model {source} --out FILE.json"
            )
        out = Path(model.folder) / "profiles" / f"{name}.json"
    if host.mps_percentage < 100 and not mps_is_running():
        raise SlimError("the MPS daemon does not run; start it with: nvidia-cuda-mps-control -d")
    if host.kind == "cuda":
        os.environ.update(environment(host))  # CUDA reads it when it starts

    import torch

    from slimsched.serving.live.server import host_models
    from slimsched.serving.measure.profile import MeasuringPlan, device_facts, open_profiler

    on = torch.device("cpu")
    if host.kind == "cuda":
        from slimsched.serving.live.cuda import cuda_device

        on = cuda_device()
    plan = MeasuringPlan(
        batches=sizes,
        concurrency=(1,) if host.kind == "cpu" else (1, 2, 4),
        repeats=options.repeats,
        cell_s=60.0 if host.kind == "cpu" else 0.02,
        active_w=options.active_w,
    )
    part = out.with_suffix(".part")
    out.parent.mkdir(parents=True, exist_ok=True)
    (hosted,) = host_models([model], on)
    profiler = open_profiler(hosted, model, host, plan, part, idle_w=options.idle_w)
    with cell_bar("warming up", 0) as bar:
        profiler.measure(
            lambda done, of, cell: bar.update(
                bar.task_ids[0], completed=done, total=of, description=f"{cell[0]}, batch {cell[1]}"
            )
        )
    kind, facts = device_facts(host)
    share = f"{host.threads} thread(s)" if host.kind == "cpu" else f"{host.mps_percentage} % under MPS"
    is_whole = host.kind == "cuda" and host.mps_percentage == 100
    record = profiler.record(name, f"measured: {kind}{'' if is_whole else f', {share}'}", facts)
    out.write_bytes(msgspec.json.encode(record))
    part.unlink(missing_ok=True)
    Console().print(f"written: {out}; energy {record.energy_source}; spread {100 * record.spread:.0f} %")
