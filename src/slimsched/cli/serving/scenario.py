"""Options that choose a scenario, its load, its goal and its faults, shared by the commands that serve.

Also what live runs need besides: examples to send, and servers that several runs share.
"""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import typer
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.cli.options import ModelSources, need, picture
from slimsched.core import config as quantity
from slimsched.core.config import ConfigError, Count, Milliseconds, RunSeconds, WorkerCount, convert
from slimsched.models.spec import SHIPPED_MODELS, ModelSpec
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.domain.model import ServedModel, outlines
from slimsched.serving.measure.examples import ExampleSet, made_up_examples
from slimsched.serving.options import RayOptions
from slimsched.serving.scenario.files import ChosenScenario, choose_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.run_folder import About, energy_bound, trace_arrays, write_run

if TYPE_CHECKING:
    from slimsched.serving.measure.live_runs import LiveRow

# -- Live runs of several routers, in turn on the same servers: the examples, the meter and the event loop.


def run_in_turn(
    scenario: Scenario,
    routers: Sequence[str],
    *,
    seed: int,
    rounds: int,
    data: Path | None,
    progress: Callable[[str], None],
) -> "list[LiveRow]":
    """Run every router in every round; return the rows in that order.

    `progress` is told what is sent, then which router runs. Energy is the GPU's own counter where the servers
    share one.
    """
    need("torch")
    from slimsched.serving.live.sensors import open_nvml
    from slimsched.serving.live.wire import run
    from slimsched.serving.measure.live_runs import compare_live, in_turn

    examples = examples_of(scenario.cluster.models, data)
    gpus = {host.gpu for host in scenario.hosts if host is not None and host.kind == "cuda"}
    progress(f"{describe(examples)}; starting the servers")
    work = compare_live(
        scenario,
        in_turn(routers, scenario, seed=seed, rounds=rounds),
        examples,
        meter=open_nvml(min(gpus)) if len(gpus) == 1 else None,
        progress=progress,
    )
    return run(work)


# -- Examples to send to models: real ones where the user has them, made-up ones where not.


def examples_of(models: Sequence[ServedModel], data: Path | None) -> list[ExampleSet]:
    """One set of examples per model.

    A shipped model takes CIFAR-100's test images from `data` or SLIM_DATA. Another model takes the labelled
    examples of `data`: a folder of class folders, or an .npz file.
    """
    if data is not None and len(models) > 1:
        raise ConfigError("--data names the examples of one model; leave it out with several models")
    return [test_examples(model.spec, data) for model in models]


def describe(examples: Sequence[ExampleSet]) -> str:
    """Say what is sent."""
    return "; ".join(dict.fromkeys(one.source for one in examples))


def test_examples(spec: ModelSpec, data: Path | None) -> ExampleSet:
    """Examples for any model: CIFAR-100's test images for a shipped one, what `data` holds for others."""
    if spec.name in SHIPPED_MODELS and (data is None or data.is_dir()):
        return _cifar_examples(spec, data)
    if data is None:
        return made_up_examples(spec)
    from slimsched.models.data.dataset import read_inputs

    inputs = read_inputs(data, spec, labelled=False)
    return ExampleSet(inputs=inputs.arrays, labels=inputs.labels, source=f"examples of {data.name}")


def _cifar_examples(spec: ModelSpec, data: Path | None) -> ExampleSet:
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is None or (data is None and cifar.find(folder) is None):
        return made_up_examples(spec, count=1000)
    test_set = cifar.read(folder, "test")
    images: NDArray[Any] = test_set.images
    if spec.inputs[0].datatype == "FP32":
        images = images.astype(np.float32) / np.float32(255)
    return ExampleSet(inputs=(images,), labels=test_set.labels, source="CIFAR-100 test images")


ScenarioName = Annotated[
    str,
    "A shipped scenario: paper, edge-12, fleet-64, laptop, h200, algorithm1, algorithm1-cpu; or "
    "one-gpu, with a --model that was profiled on a GPU.",
]
LiveScenarioName = Annotated[
    str,
    "A shipped scenario that can run here: laptop or algorithm1-cpu (CPU), h200 or algorithm1 (that "
    "GPU), or one-gpu, with a "
    "--model that was profiled on this GPU.",
]
ConfigFile = Annotated[Path | None, "A scenario file of your own instead."]
Accuracy = Annotated[
    str | None,
    "Accuracy table: measured (the model's own), paper (the paper's tables, additive between them) "
    "or paper:nearest (the paper's own rule between them).",
]
ROUTER = "A name, with options after colons (lp:margin=1.2), or your own: file.py:Class."
RouterSpec = Annotated[str, ROUTER]
ROUTERS = "Routers separated by commas; each may have options, or a goal as in goal\\[p99<=60ms]."
RouterList = Annotated[str, ROUTERS]
Arrivals = Annotated[str | None, "poisson, bursty, fitted, diurnal, step, or the path of a trace file."]
ArrivalsName = Annotated[
    str, "poisson, bursty, fitted (to a real trace), diurnal, step, or the path of a trace file."
]
Rate = Annotated[quantity.Rate | None, "Mean arrival rate in requests per second."]
Seconds = Annotated[RunSeconds | None, "Length of the run in simulated seconds."]
Deadline = Annotated[Milliseconds | None, "Deadline of each request in milliseconds."]
Data = Annotated[
    Path | None, "Examples to send: CIFAR-100 (SLIM_DATA if left out), a folder, or an .npz file."
]
Seeds = Annotated[Count, "Runs per router; figures are means, with 95 % intervals."]
Workers = Annotated[WorkerCount, "Processes to use; 0 means one per core."]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", callback=picture, help="Draw latency, accuracy against energy, and choices into a PNG."
    ),
]
Out = Annotated[Path | None, "Leave the run in this folder, for slim report."]

_FAULT = re.compile(r"^(?P<server>[^@]+)@(?P<at>[0-9.]+)s?(?:x(?P<factor>[0-9.]+))?$")


class LoadOptions(Struct, frozen=True, kw_only=True):
    """Changes to the scenario's load; what is left out stays."""

    arrivals: Arrivals = None
    rate: Rate = None
    seconds: Seconds = None
    deadline_ms: Deadline = None

    def apply(self, chosen: ChosenScenario) -> ChosenScenario:
        """Return the same choice under this load."""
        scenario = chosen.scenario.with_load(
            arrivals=self.arrivals,
            rate_per_s=self.rate,
            seconds=self.seconds,
            deadline_s=None if self.deadline_ms is None else self.deadline_ms / 1000,
        )
        return replace(chosen, scenario=scenario)


class PoolOptions(RayOptions, frozen=True, kw_only=True):
    """Where many simulated runs are done."""

    def open(self) -> Executor | None:
        """Return the pool that runs are given to; None means processes on this machine."""
        if self.engine == "local":
            return None
        from slimsched.serving.ray.engine import RayTasks

        return RayTasks(self.address)


class FaultOptions(Struct, frozen=True, kw_only=True):
    """Faults to put on the timeline."""

    kill: Annotated[list[str], "Kill a server, as server-0@10s."] = []
    hang: Annotated[list[str], "Let a server hang, as server-0@10s."] = []
    restore: Annotated[list[str], "Bring it back, as server-0@20s."] = []
    slow: Annotated[list[str], "Slow it down, as server-0@5sx2."] = []
    slow_link: Annotated[list[str], "Slow its link down, as server-0@5sx4."] = []

    leave: Annotated[list[str], "Let it finish its work and stop, as server-0@8s."] = []

    def read(self) -> tuple[Fault, ...]:
        """Read the faults, earliest first."""
        faults = [
            _read_fault(name.replace("_", "-"), text)
            for name in self.__struct_fields__
            for text in getattr(self, name)
        ]
        return tuple(sorted(faults, key=lambda fault: fault.at_s))


def write_folder(
    out: Path,
    chosen: ChosenScenario,
    traces: Sequence[Trace],
    rows: Sequence[dict[str, Any]],
    *,
    seed: int,
    seeds: int = 1,
) -> None:
    """Leave runs in a folder that was made for them: the scenario as it was run, figures, arrivals."""
    scenario, first = chosen.scenario, traces[0].summary
    load, faults, gateway = map(msgspec.to_builtins, (scenario.load, scenario.faults, scenario.gateway))
    arrays = trace_arrays(traces, scenario.load.arrivals_s(np.random.default_rng(seed)))
    arrays |= energy_bound(scenario.cluster, max(1, first.arrived) / first.seconds, scenario.shares)
    about = About(
        kind="requests",
        title=f"{scenario.name}: {scenario.description}" if scenario.description else scenario.name,
        seed=seed,
        seeds=seeds,
        config={**chosen.raw, "load": load, "gateway": gateway} | ({"fault": list(faults)} if faults else {}),
        faults=scenario.faults,
        models=outlines(scenario.cluster.models, plans=True),
    )
    write_run(out, about, rows, arrays, traces[0].frames)


class ScenarioOptions(Struct, frozen=True, kw_only=True):
    """Which scenario to run."""

    scenario: ScenarioName = "paper"
    config: ConfigFile = None
    model: ModelSources = None
    accuracy: Accuracy = None

    def read(self, goal: str | None = None) -> ChosenScenario:
        """Read the scenario; a goal given here replaces the one of the file."""
        return choose_scenario(
            self.scenario, self.config, self.model or (), accuracy=self.accuracy, goal=goal
        )


class LiveScenarioOptions(Struct, frozen=True, kw_only=True):
    """Which scenario to run on this machine."""

    scenario: LiveScenarioName = "laptop"
    config: ConfigFile = None
    model: ModelSources = None

    def read(self, goal: str | None = None) -> ChosenScenario:
        """Read the scenario; a goal given here replaces the one of the file."""
        return choose_scenario(self.scenario, self.config, self.model or (), goal=goal)


def _read_fault(kind: str, text: str) -> Fault:
    """Read 'server-0@10s', or 'server-0@10sx2.5' for a slow-down."""
    match = _FAULT.match(text)
    if match is None or (kind in ("slow", "slow-link")) != (match["factor"] is not None):
        form = "server-0@10sx2" if kind in ("slow", "slow-link") else "server-0@10s"
        raise ConfigError(f"--{kind} '{text}' is not understood; write it as {form}")
    raw = {"server": match["server"], "kind": kind, "at_s": match["at"], "slowdown": match["factor"] or "1"}
    return convert(raw, Fault, f"--{kind} '{text}'", strict=False)
