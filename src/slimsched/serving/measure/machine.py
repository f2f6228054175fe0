"""This machine: what it has, and the scenario that `slim serve` writes for itself.

Three steps, each a function of what the one before it gave:

1. `find_machine` looks: the GPUs that NVML shows, slices of them included, and the cores that this process
   may use. What cannot be used is left out with a note that says why.
2. `choose_hosts` shares it out: two server processes for each GPU where MPS lets them run side by side, else
   one; without a GPU, one server for each core, or for several where one is too slow for the model.
3. `scenario_of` writes the scenario, as a person would write it in a file: memory, batches, deadlines and
   load follow from the profiles, which are measured where nobody has measured them (`measure/quick`).

Nothing here is special to a live run: `slim machine --out FILE` writes the same scenario as a file.
"""

import atexit
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import UNREADABLE, ConfigError
from slimsched.models.cache import cache_root, write_kept
from slimsched.models.spec import DEFAULT_MODEL
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile, ProfileRecord
from slimsched.serving.gateway.goal import Goal, parse_goal
from slimsched.serving.live.memory import memory_bytes
from slimsched.serving.live.sensors import available_bytes, mps_is_running
from slimsched.serving.measure.missing import measured
from slimsched.serving.options import MachineOptions
from slimsched.serving.scenario.files import (
    CONFIGS,
    ChosenScenario,
    build_scenario,
    read_model,
    source_of,
    with_kept_quality,
)
from slimsched.serving.scenario.scenario import Scenario

# -- What is here.

BUSY = 0.1
"""A GPU whose kernels ran for more than this share of the last second is called busy."""


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU, or a slice of one, as NVML shows it."""

    index: int
    """Its number as nvidia-smi counts; slices of one GPU share it."""
    name: str
    total_bytes: int
    free_bytes: int
    busy: float = 0.0
    """The share of time in which kernels ran lately, whoever started them."""
    slice: str = ""
    """The identifier of a MIG slice; empty: the whole GPU."""

    @property
    def text(self) -> str:
        """The GPU in words."""
        used = f"{100 * self.busy:.0f} % busy, " if self.busy > BUSY else ""
        return f"{self.name} ({used}{self.free_bytes / 1e9:.0f} of {self.total_bytes / 1e9:.0f} GB free)"


class ThisMachine(Struct, frozen=True, kw_only=True):
    """What this process may use."""

    processor: str
    cores: tuple[int, ...]
    """The numbers of the cores; with a quota, some of them."""
    is_bound: bool
    """Whether servers may be bound to these cores: not where a quota gives time on any of more cores."""
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    shares_gpus: bool = False
    """Whether several processes can run on a GPU side by side (MPS)."""
    notes: tuple[str, ...] = ()
    """What is here and is not used, and why."""

    @property
    def text(self) -> str:
        """The machine in words."""
        cores = f"{len(self.cores)} core{'s' if len(self.cores) > 1 else ''}"
        return ", ".join([*(gpu.text for gpu in self.gpus), f"{cores} ({self.processor})"])


def find_machine(options: MachineOptions) -> ThisMachine:
    """Look at what this process may use, and keep what the options ask for."""
    kinds = options.kinds
    cores, is_bound = usable_cores()
    found = ThisMachine(
        processor=processor(),
        cores=cores[: options.cores],
        is_bound=is_bound,
        memory_bytes=min(memory_bytes(), available_bytes() or memory_bytes()),
    )
    if kinds == {"cpu"}:
        return found
    gpus, notes = find_gpus()
    wanted = [gpu for gpu in gpus if kinds & {"cuda", f"cuda:{gpu.index}"} or not kinds]
    if gpus and (why := _cuda_lacks()):
        wanted, notes = [], [f"{gpus[0].name} is not used: {why}"]
    if kinds and not wanted:
        known = ", ".join(f"cuda:{gpu.index}" for gpu in gpus) or "no GPU"
        raise ConfigError(". ".join([f"--devices {options.devices}: this machine has {known}", *notes]))
    return replace(found, gpus=tuple(wanted), notes=tuple(notes))


def usable_cores(groups: Path = Path("/sys/fs/cgroup")) -> tuple[tuple[int, ...], bool]:
    """Return the cores that this process may use, and whether it may use each of them wholly."""
    allowed = (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    count = max(1, min(len(allowed), int(min(_quotas(groups), default=len(allowed)))))
    return tuple(allowed[:count]), count == len(allowed)


def _quotas(groups: Path) -> Iterator[float]:
    """Yield the cores that a container may use, by both versions of cgroups, in its group or above."""
    own = ""
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    folders = [place for place in (groups / own, *(groups / own).parents) if place.is_relative_to(groups)]
    old = groups / "cpu"
    files = [(folder / "cpu.max",) * 2 for folder in folders]
    for quota, period in (*files, (old / "cpu.cfs_quota_us", old / "cpu.cfs_period_us")):
        with suppress(OSError, ValueError, IndexError):  # there is none, or it is "max"
            cores = float(quota.read_text().split()[0]) / float(period.read_text().split()[-1])
            if cores > 0:
                yield cores


def processor() -> str:
    """Return the processor's name as the system gives it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, os.uname().machine)


def find_gpus() -> tuple[list[Gpu], list[str]]:
    """Ask NVML for the GPUs that CUDA programs of this process see; also say what is in the way."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return [], []
    except Exception as error:  # NVML's own error class is not known without it
        return [], [] if "NotFound" in type(error).__name__ else [f"GPUs are not used: NVML says {error}"]
    gpus, notes = list[Gpu](), list[str]()
    for index in _visible(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            slices = _slices(pynvml, handle)
            gpus += [_gpu(pynvml, one, index, is_slice=bool(slices)) for one in slices or [handle]]
        except Exception as error:
            notes.append(f"GPU {index} is not used: NVML says {error}")
    return gpus, notes


def _visible(count: int) -> list[int]:
    """Return the numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves; identifiers are left to CUDA."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [] if given is None else [word.strip() for word in given.split(",")]
    if given is None or any(word and not word.isdigit() for word in words):
        return list(range(count))
    return [int(word) for word in words if word and int(word) < count]


def _slices(nvml: Any, handle: Any) -> list[Any]:
    """Return the MIG slices of a GPU; none where it is whole."""
    slices = []
    with suppress(Exception):  # this GPU has no MIG
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(Exception):  # no slice has this number
                    slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return slices


def _gpu(nvml: Any, handle: Any, index: int, *, is_slice: bool) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        busy=0.0 if is_slice else nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,  # unknown of slices
        slice=nvml.nvmlDeviceGetUUID(handle) if is_slice else "",
    )


def _cuda_lacks() -> str:
    """Say what PyTorch lacks to use a GPU, without importing it; nothing if it has all."""
    spec = find_spec("torch")
    with suppress(OSError):
        if spec is None or spec.origin is None:
            return ""
        version = Path(spec.origin).with_name("version.py").read_text()
        if not re.search(r"^cuda\b.*=\s*'", version, re.MULTILINE):
            return "this PyTorch is built without CUDA; install one that is built with it"
    return ""


def start_mps() -> None:
    """Start NVIDIA's MPS for this process and its children, so that servers run side by side on a GPU.

    A daemon that runs already is taken. Where none can be started, servers take turns.
    """
    if mps_is_running() or shutil.which("nvidia-cuda-mps-control") is None:
        return
    folder = Path(tempfile.mkdtemp(prefix="slim-mps-"))
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    command = ["nvidia-cuda-mps-control", "-d"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, check=False)
    if done.returncode == 0:
        os.environ.update(own)
        atexit.register(_stop_mps, folder, os.getpid())


def _stop_mps(folder: Path, starter: int) -> None:
    if os.getpid() == starter:  # not a child that was forked from it
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


# -- How it is shared out: one host for each server process.

LANES = 2
"""Processes for each GPU: while one gets its inputs ready, the other computes."""

SLOW_S = 0.25
"""If one example of the widest plan takes longer on a core, a server gets several cores."""


class Place(Struct, frozen=True, kw_only=True):
    """A device that servers share: what its profile is called, and the host of each server."""

    device: str
    hosts: tuple[Host, ...]
    memory_bytes: int
    """The memory of each server."""
    records: tuple[ProfileRecord, ...] = ()
    """The profiles of all models."""

    @property
    def is_gpu(self) -> bool:
        """Whether its servers share one GPU; servers on cores have theirs alone."""
        return self.hosts[0].kind == "cuda"


def choose_places(machine: ThisMachine, threads: int = 1) -> list[Place]:
    """Share the machine out: all GPUs, else all cores, with so many threads for each server."""
    if machine.gpus:
        count = LANES if machine.shares_gpus else 1
        return [
            Place(
                device=_slug(gpu.name),
                hosts=(Host(kind="cuda", gpu=gpu.index, slice=gpu.slice),) * count,
                memory_bytes=int(0.9 * gpu.free_bytes) // count,
            )
            for gpu in machine.gpus
        ]
    threads = min(threads, len(machine.cores))
    count = len(machine.cores) // threads
    if count >= 4:  # the gateway needs a core's time itself
        count = (len(machine.cores) - 1) // threads
    sets = [machine.cores[-(n + 1) * threads :][:threads] for n in range(count)]
    hosts = tuple(Host(threads=threads, cores=cores if machine.is_bound else ()) for cores in sets)
    device = _slug(machine.processor, f"{threads} thread{'s' if threads > 1 else ''}")
    return [Place(device=device, hosts=hosts, memory_bytes=machine.memory_bytes // 2 // count)]


def _slug(*words: str) -> str:
    """Write words as a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(filter(None, words)).lower()).strip("-")


# -- The scenario that follows.

MOVED_BYTES_PER_S = 2e9
"""What one front process reads from clients and hands on, about."""

CORES_EACH = 4
"""There is at most one front for this many cores."""

SHORTEST_DEADLINE_S = {"cuda": 0.25, "cpu": 1.0}
WAITS = 4
"""A request may wait for this many times what one example takes at the widest plan."""

LOAD = 0.7
"""The load of simulated runs, as a share of what the devices carry at the widest plan."""


class Plan(Struct, frozen=True, kw_only=True):
    """What was chosen for this machine."""

    machine: ThisMachine
    raw: dict[str, Any]
    """The scenario, as a file would say it."""
    fronts: int
    """Processes that read requests; 0: the gateway does."""
    widest_s: float
    """What one example takes at the widest plan of the slowest model."""
    carries: dict[str, tuple[float, float]]
    """Examples per second of each model by profile, at the widest and at the narrowest plan."""
    notes: tuple[str, ...]
    """What is not used, and why."""

    @property
    def facts(self) -> dict[str, Any]:
        """What programs may want to know of it."""
        return {
            "machine": msgspec.to_builtins(self.machine),
            "servers": self.raw["server"],
            "fronts": self.fronts,
            "carries_per_s": {
                model: {"widest": round(widest, 1), "narrowest": round(narrowest, 1)}
                for model, (widest, narrowest) in self.carries.items()
            },
            "not_used": list(self.notes),
        }


def plan_machine(
    machine: ThisMachine,
    places: Sequence[Place],
    sources: Sequence[str],
    goal: Goal | None = None,
) -> Plan:
    """Write the scenario of this machine, whose places have profiles of all models."""
    models = [read_model(source, rated=False).numbered(at) for at, source in enumerate(sources)]
    used, notes = list[tuple[Place, list[Profile]]](), list(machine.notes)
    for place in places:
        profiles = [record.profile(model) for record, model in zip(place.records, models, strict=True)]
        largest = max(max(profile.instance_bytes.values()) for profile in profiles)
        if largest <= place.memory_bytes:
            used.append((place, profiles))
        else:
            notes.append(
                f"{place.device} is not used: a part of the model takes {largest / 1e9:.1f} GB, and each of "
                f"{len(place.hosts)} servers has {place.memory_bytes / 1e9:.1f} GB"
            )
    if not used:
        raise ConfigError(f"no device of this machine holds the model: {notes[-1]}")
    carries = {
        model.name: (_per_s(used, model, model.spec.widest), _per_s(used, model, model.spec.narrowest))
        for model in models
    }
    widest_s = max(
        sum(profiles[model.number].latency_s(key, 1) for key in model.legs(model.spec.widest))
        for _, profiles in used
        for model in models
    )
    stated = [] if goal is None else [limit.limit_s for limit in goal.latency_limits]
    kind = used[0][0].hosts[0].kind
    raw: dict[str, Any] = {
        "name": "this-machine",
        "description": machine.text,
        "accuracy": "if-measured",
        "load": {
            "rate_per_s": max(1.0, round(LOAD * min(widest for widest, _ in carries.values()), 1)),
            "seconds": 10.0,
            "deadline_s": min(stated, default=max(SHORTEST_DEADLINE_S[kind], round(WAITS * widest_s, 2))),
        },
        "link": {"bandwidth_bytes_per_s": 2e9, "latency_s": 0.0002},
        "gateway": {"step_s": 0.0, "plan": "network"},
        "telemetry": {"period_s": 0.2, "delay_s": 0.001, "detection_s": 0.05},
        "scheduler": {"batch_limit": 0, "utilization_block": 1.01},
        "server": [one for place, profiles in used for one in _servers(place, models, profiles)],
        "model": [with_kept_quality({"source": source}) for source in sources],
        "profile": [msgspec.to_builtins(record) for place, _ in used for record in place.records],
    }
    bytes_per_s = max(carries[model.name][1] * model.spec.row_bytes for model in models)
    return Plan(
        machine=machine,
        raw=raw,
        widest_s=widest_s,
        fronts=min(most_fronts(len(machine.cores)), max(1, ceil(bytes_per_s / MOVED_BYTES_PER_S))),
        carries=carries,
        notes=tuple(notes),
    )


def most_fronts(cores: int) -> int:
    """Return how many front processes so many cores can spare; 0: the gateway reads requests itself."""
    return cores // CORES_EACH if cores >= 2 * CORES_EACH else 0


def _per_s(
    used: Sequence[tuple[Place, Sequence[Profile]]], model: ServedModel, plan: tuple[int, ...]
) -> float:
    """Return the examples per second of a plan on all devices; servers on a GPU share it."""
    total = 0.0
    for place, profiles in used:
        profile = profiles[model.number]
        work_s = sum(profile.work_s(key, profile.batches[-1]) for key in model.legs(plan))
        total += (1 if place.is_gpu else len(place.hosts)) / work_s
    return total


def _servers(
    place: Place, models: Sequence[ServedModel], profiles: Sequence[Profile]
) -> list[dict[str, Any]]:
    """Write the sections of a place's servers: everything resident if it fits, else as it is needed."""
    scheduler: dict[str, Any] = {"vram_cap_bytes": place.memory_bytes}
    resident, needed = set[str](), 0
    for model in models:  # the widest choice of a nested model runs the narrower ones too
        resident.update(["widest"] if model.spec.nested else chain(*model.spec.segments))
    for model, profile in zip(models, profiles, strict=True):
        for (_, segment, choice), size in profile.instance_bytes.items():
            names = model.spec.segments[segment]
            is_widest = choice == len(names) - 1
            needed += size if names[choice] in resident or (is_widest and "widest" in resident) else 0
    if needed <= place.memory_bytes:
        # a second instance of what is resident gains nothing: each process computes one batch at a time
        times = 1 if len(place.hosts) > 1 or not place.is_gpu else LANES
        scheduler |= {"resident": sorted(resident) * times, "scale_trigger": 1_000_000}
    name = f"gpu-{place.hosts[0].gpu}" if place.is_gpu else "core"
    usual = msgspec.to_builtins(Host())
    changed = [
        {
            key: value
            for key, value in msgspec.to_builtins(host).items()
            if key == "kind" or value != usual[key]
        }
        for host in place.hosts
    ]
    return [
        {
            "name": name if len(place.hosts) == 1 else f"{name}-{chr(97 + n) if place.is_gpu else n}",
            "device": place.device,
            "host": host,
            "scheduler": scheduler,
        }
        for n, host in enumerate(changed)
    ]


def describe(
    plan: Plan, scenario: Scenario, lines: Sequence[str] = (), quality: Mapping[str, str] | None = None
) -> list[str]:
    """Say in a few lines what was found, chosen and measured.

    `lines` are about how requests are read; `quality` says what models' plans are rated by now.
    """
    host, served = scenario.hosts[0], scenario.schedulers[0]
    assert host is not None
    gpus = len({(one.gpu, one.slice) for one in scenario.hosts if one is not None})
    where = f"on {gpus} GPU" if host.kind == "cuda" else f"of {host.threads} core{'s' * (host.threads > 1)}"
    told = [
        f"machine: {plan.machine.text}",
        f"servers: {len(scenario.hosts)} {where}, batches of up to {served.batch_limit}, precision "
        f"{host.precision or 'as the model says'}, front processes: {plan.fronts}",
    ]
    for record, model in zip(plan.raw["profile"], scenario.cluster.models, strict=False):
        widest, narrowest = plan.carries[model.name]
        told.append(
            f"{model.name}: {widest:,.0f}/s at the widest plan, {narrowest:,.0f}/s at the narrowest "
            f"({record['source']}, {record['device'].get('date', '')}); quality: "
            + (quality or {}).get(model.name, model.quality.name)
        )
    return [*told, *lines, *plan.notes]


def write_scenario(path: Path, plan: Plan) -> None:
    """Write the scenario as a file, and the profiles that it names beside it, in `profiles`."""
    folder = path.parent / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    for record in plan.raw["profile"]:
        name = f"{record['name']}-{record['model']}.json"
        (folder / name).write_bytes(msgspec.json.encode(record))
    tables = {key: value for key, value in plan.raw.items() if key != "profile"}
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if isinstance(value, str)]
    for key, value in tables.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *(f"{name} = {_toml(one)}" for name, one in value.items())]
        for entry in value if isinstance(value, list) else ():
            lines += ["", f"[[{key}]]", *(f"{name} = {_toml(one)}" for name, one in entry.items())]
    path.write_text("\n".join(lines) + "\n")


def _toml(value: object) -> str:
    """Write a value of a scenario in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


# -- All of it: look, measure, choose.


async def plan_here(
    options: MachineOptions, models: Sequence[str], goal: str | None, say: Callable[[str], None]
) -> tuple[ChosenScenario, Plan]:
    """Choose what to serve these models on, measuring what is not known; `say` tells how far it is."""
    machine = find_machine(options)
    if machine.gpus:
        start_mps()
        machine = replace(machine, shares_gpus=mps_is_running())
    machine = replace(machine, notes=(*machine.notes, *_gone(machine)))
    sources = [source_of(model) for model in models] or [DEFAULT_MODEL]
    asked, threads = None if goal is None else parse_goal(goal), 1
    while True:
        places = list[Place]()
        for place in choose_places(machine, threads):
            known = await measured(
                sources,
                place.hosts[0],
                place.device,
                progress=lambda done, of, text: say(f"{text} ({done} of {of})" if of else text),
                precision=options.precision,
            )
            hosts = tuple(replace(host, precision=known.precision) for host in place.hosts)
            places.append(replace(place, device=known.name, hosts=hosts, records=tuple(known.records)))
        plan = plan_machine(machine, places, sources, asked)
        if machine.gpus or plan.widest_s <= SLOW_S or threads >= len(machine.cores):
            break
        threads = min(len(machine.cores), 2 * threads)
    raw = plan.raw if goal is None else {**plan.raw, "goal": goal}
    scenario = build_scenario(raw, "this machine", CONFIGS)
    path = CONFIGS / "this-machine.toml"  # where it would be if it were shipped: what it names is found there
    return ChosenScenario(scenario=scenario, raw=raw, path=path, is_shipped=True), plan


def _gone(machine: ThisMachine) -> list[str]:
    """Say which GPUs the last start here found and this one does not, and remember what there is now."""
    path, now, before = cache_root() / "machine.json", [gpu.name for gpu in machine.gpus], list[str]()
    with suppress(*UNREADABLE):
        before = msgspec.json.decode(path.read_bytes(), type=list[str])
    if before != now:
        write_kept(path, msgspec.json.encode(now))
    where = f"{len(now)} other GPU" if now else f"{len(machine.cores)} cores"
    gone = ", ".join((Counter(before) - Counter(now)).elements())
    return [f"{gone} was here at the last start and is not now: serving on {where}"] if gone else []
