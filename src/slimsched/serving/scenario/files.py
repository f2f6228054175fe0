"""Reads scenarios, devices and accuracy tables; every error names the file, section, key and remedy.

Also where models come from, and the setting of a run that its log keeps so that it can be replayed.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

import slimsched
from slimsched import __version__
from slimsched.core.config import (
    UNREADABLE,
    ConfigError,
    Count,
    DataError,
    Identity,
    Name,
    PositiveAmount,
    Seed,
    UnknownNameError,
    read_section,
    read_toml,
)
from slimsched.core.log import Header
from slimsched.models.package import read_figures, read_quality, read_spec
from slimsched.models.quality import QualityTable
from slimsched.models.shipped import (
    default_figures,
    default_quality,
    default_spec,
    load_default,
    shipped_folder,
)
from slimsched.models.spec import DEFAULT_MODEL, SHIPPED_MODELS, ModelSpec, PlanTree
from slimsched.serving.domain.cluster import (
    AUTOSCALER_NAME,
    GATEWAY_NAME,
    Cluster,
    Fault,
    Host,
    Link,
    server_of,
)
from slimsched.serving.domain.model import ModelOutline, ServedModel
from slimsched.serving.domain.profile import (
    ALONE,
    DEADLINE_SHARE,
    Device,
    Profile,
    ProfileRecord,
    ServiceCost,
    ServiceNoise,
    modelled_profile,
    useful_batch,
)
from slimsched.serving.gateway.goal import Goal, check_affordable, check_reachable, parse_goal, reachable_goal
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.routers.autoscaler import AutoscaleOptions
from slimsched.serving.scenario.scenario import Scenario, TelemetryOptions
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.workload.load import Load

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel

# -- Where served models come from: the shipped ones by name, or a model folder.


def shipped_model(quality: QualityTable | None = None) -> ServedModel:
    """Return the default model, with its measured quality or another table."""
    return ServedModel(default_spec(), quality or default_quality(), default_figures())


def read_model(source: str, beside: Path | None = None, *, rated: bool = True) -> ServedModel:
    """Read a model without its code: a shipped one by its name, any other from its folder.

    A folder is looked up beside the scenario first, then in the working directory. Without `rated`, the
    model's plans need not have been evaluated.
    """
    if source == DEFAULT_MODEL:
        return shipped_model()
    folder = find_folder(source, beside)
    spec = read_spec(folder)
    quality = read_quality(folder, spec) if rated else _unrated(spec)
    return ServedModel(spec, quality, read_figures(folder, spec), folder=str(folder.resolve()))


def _unrated(spec: ModelSpec) -> QualityTable:
    """Return a table in which all plans have the same accuracy."""
    tree = PlanTree(spec.plans)
    return QualityTable(tree, name="not evaluated", accuracy=np.ones(len(tree.plans)))


def find_folder(source: str, beside: Path | None = None) -> Path:
    """Find a model's folder."""
    if (shipped := shipped_folder(source)) is not None:
        return shipped
    for folder in (*([beside / source] if beside is not None else []), Path(source)):
        if folder.is_dir():
            return folder
    raise DataError(
        f"no model '{source}': give {', '.join(map(repr, SHIPPED_MODELS))} or a model folder; "
        f"make a new one with slim model new {source}"
    )


def load_elastic(model: ServedModel) -> "ElasticModel":
    """Load a model's code and weights."""
    if model.folder:
        from slimsched.models.loading import load_model

        return load_model(Path(model.folder))
    return load_default()


_PACKAGE = Path(slimsched.__file__).parent
_PACKAGED = _PACKAGE / "configs"
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else _PACKAGE.parents[1] / "configs"
"""The shipped configurations: inside the installed package, or beside src/ in a checkout."""

MOST_SERVERS = 10_000
LARGEST_BYTES = 2**26
"""How large a profile may be that is looked for by its name."""
SHORTEST_STEP_S = 1e-5


class _Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of server in a scenario file, `count` of them."""

    name: Name  # its name; with a count, NAME-0, NAME-1, …
    device: Name  # a profile or device by name or path; see the search paths
    count: Count = 1  # how many such servers
    link: Link | None = None  # its own link; else [link]
    host: Host | None = None  # what it runs on when served live; without it, it is simulated only
    service: ServiceCost = ALONE  # what batches cost in service beyond the profile
    scheduler: dict[str, Any] = {}  # what differs from [scheduler]


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the models in a scenario file: the shipped one by name, or a model folder."""

    source: str  # a shipped model by name, or a model folder
    share: PositiveAmount = 1.0  # its share of the requests
    weight: PositiveAmount = 1.0  # what its accuracy counts beside other models
    goal: str | None = None  # its own goal


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario file."""

    name: Name  # name of the scenario
    server: list[dict[str, Any]]  # the servers, [[server]]
    load: dict[str, Any]  # the load, [load]
    link: dict[str, Any]  # the servers' links, [link]
    description: str = ""  # one line for people
    model: list[dict[str, Any]] = []  # the models, [[model]]; without any, the shipped one
    accuracy: Name = "measured"  # accuracy table: measured, paper or paper:nearest
    goal: str | None = None  # the goal of routers that follow one; see goals.md
    gateway_link: dict[str, Any] | None = None  # the gateway's link, [gateway_link]; else [link]
    gateway: dict[str, Any] = {}  # how the gateway works, [gateway]
    scheduler: dict[str, Any] = {}  # the local schedulers, [scheduler]
    telemetry: dict[str, Any] = {}  # reports of servers, [telemetry]
    autoscale: dict[str, Any] | None = None  # how many servers run, [autoscale]; without it, all
    fault: list[dict[str, Any]] = []  # faults to put on the timeline, [[fault]]
    noise: dict[str, Any] = {}  # how much batch times vary, [noise]


def load_scenario(
    name_or_path: str,
    *,
    models: Sequence[str | Path] = (),
    goal: str | None = None,
    accuracy: str | None = None,
) -> Scenario:
    """Read a shipped scenario by name, or any scenario by path.

    Models (shipped ones by name, or folders), a goal and an accuracy table given here replace the file's.
    """
    raw, path = read_scenario(name_or_path, models=models, goal=goal, accuracy=accuracy)
    return build_scenario(raw, path.name, path.parent)


def read_scenario(
    name_or_path: str, *, models: Sequence[str | Path] = (), **changed: str | None
) -> tuple[dict[str, Any], Path]:
    """Return the contents of a scenario file, with other models and some keys changed, and its path."""
    path = _find(name_or_path)
    raw = read_toml(path) | {key: value for key, value in changed.items() if value is not None}
    if models:
        raw["model"] = [{"source": _source(model)} for model in models]
    return raw, path


def build_scenario(raw: dict[str, Any], name: str, beside: Path) -> Scenario:
    """Check a scenario file section by section and build the scenario."""
    file = read_section(raw, _File, name, "")
    options = read_section(file.scheduler, SchedulerOptions, name, "scheduler")
    link = read_section(file.link, Link, name, "link")
    gateway_link = (
        link if file.gateway_link is None else read_section(file.gateway_link, Link, name, "gateway_link")
    )
    models, shares = _models(file, name, beside)
    load = read_section(file.load, Load, name, "load")
    load.check()
    if load.plan:
        for model in models:
            model.spec.path(load.plan)
    names: list[str] = []
    profiles, links, schedulers, hosts, costs, devices = [], [], [], [], [], []
    known: dict[tuple[str, float], Profile] = {}
    for raw in file.server:
        server = read_section(raw, _Server, name, "server")
        own = read_section({**file.scheduler, **server.scheduler}, SchedulerOptions, name, "server.scheduler")
        if server.host is not None and not own.instance_limit:
            own = msgspec.structs.replace(own, instance_limit=server.host.instance_limit)
        if len(names) + server.count > MOST_SERVERS:
            raise ConfigError(f"{name} [server]: more than {MOST_SERVERS:,} servers; give a smaller count")
        speed = server.host.speed if server.host is not None else 1.0
        if (server.device, speed) not in known:
            known[server.device, speed] = device_profile(server.device, models, beside).slowed(1 / speed)
        profile = known[server.device, speed]
        if not own.batch_limit:
            longest_s = own.batch_limit_s or DEADLINE_SHARE * load.deadline_s
            own = msgspec.structs.replace(own, batch_limit=useful_batch(profile, models, longest_s))
        check_scheduler(own, profile, f"{name} [server] '{server.name}'")
        _check_residents(own, models, name)
        for number in range(server.count):
            names.append(server.name if server.count == 1 else f"{server.name}-{number}")
            profiles.append(profile)
            links.append(server.link or link)
            schedulers.append(own)
            hosts.append(server.host)
            costs.append(server.service)
            devices.append((server.device, speed))
    _check_servers(names, name)
    cluster = Cluster(
        names=names,
        profiles=profiles,
        models=models,
        links=links,
        gateway_link=gateway_link,
        batch_limit=options.batch_limit or max(own.batch_limit for own in schedulers),
    )
    scenario = Scenario(
        name=file.name,
        description=file.description,
        cluster=cluster,
        schedulers=tuple(schedulers),
        gateway=_gateway(file.gateway, name),
        telemetry=read_section(file.telemetry, TelemetryOptions, name, "telemetry"),
        load=load,
        shares=shares,
        goal=_goal(file, name, models),
        hosts=tuple(hosts),
        costs=tuple(costs) if any(cost != ALONE for cost in costs) else (),
        noise=read_section(file.noise, ServiceNoise, name, "noise"),
        devices=tuple(devices),
        beside=str(beside),
        autoscale=_autoscale(file.autoscale, name, len(names)),
    )
    if scenario.goal is not None:
        check_affordable(scenario.goal, cluster)
    return scenario.with_faults(tuple(read_section(raw, Fault, name, "fault") for raw in file.fault))


def device_profile(name: str, models: Sequence[ServedModel], beside: Path) -> Profile:
    """Return one profile of all models on a device."""
    return Profile.joined([load_profile(name, model, beside) for model in models])


def load_profile(name: str, model: ServedModel, beside: Path) -> Profile:
    """Return a model's profile on a device, by name or path.

    The profile is measured (a .json file in the model's folder or beside the scenario), or modelled from the
    device's data sheet (a .toml file).
    """
    folders = [
        *([Path(model.folder) / "profiles"] if model.folder else []),
        beside / "profiles",
        CONFIGS / "profiles",
    ]
    measured = [beside / name, *(folder / f"{name}.json" for folder in folders)]
    others = []
    for path in measured:
        if path.suffix == ".json" and path.is_file():
            record = read_profile(path)
            if record.model == model.name:
                return record.profile(model)
            others.append(record.model)
    if sheet := _device_path(name, beside):
        return modelled_profile(read_section(read_toml(sheet), Device, sheet.name), model)
    for path in _profiles_named(name, [beside, *folders]):
        record = read_profile(path)
        if record.model == model.name:
            return record.profile(model)
        others.append(record.model)
    if others:
        raise DataError(
            f"device '{name}' has a profile of model '{others[0]}', but none of model '{model.name}'; "
            f"measure it with: slim model profile {model.folder or model.name} --name {name}"
        )
    known = sorted(path.stem for path in (CONFIGS / "profiles").glob("*.json"))
    raise UnknownNameError("device", name, [*known, *_names(CONFIGS / "devices")])


def _device_path(name: str, beside: Path) -> Path | None:
    """Return the path of a device's data sheet, if it has one."""
    paths = (beside / name, beside / "devices" / f"{name}.toml", CONFIGS / "devices" / f"{name}.toml")
    return next((path for path in paths if path.is_file()), None)


class _Named(Struct, frozen=True, kw_only=True):
    """What says whether a file is the profile of a device: its name."""

    name: str = ""


def _profiles_named(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return profiles whose own name is this one, whatever their files are called."""
    paths = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        if path.stat().st_size > LARGEST_BYTES:
            continue
        try:
            if msgspec.json.decode(path.read_bytes(), type=_Named).name == name:
                paths.append(path)
        except UNREADABLE:  # not a profile
            continue
    return paths


def read_profile(path: Path) -> ProfileRecord:
    """Read a profile file that `slim profile` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProfileRecord)
    except UNREADABLE as error:
        raise DataError(f"{path.name} is not a profile: {error}; write one with slim profile") from None


def with_accuracy(model: ServedModel, name: str) -> ServedModel:
    """Return a model with another quality table: 'measured' is its own, others are in configs/accuracy.

    'paper' fills plans that the paper did not measure by an additive model, 'paper:nearest' by the paper's
    own rule, the nearest neighbour.
    """
    if name == "measured":
        return model
    table, _, rule = name.partition(":")
    path = CONFIGS / "accuracy" / f"{table}.toml"
    if not path.is_file() or rule not in ("", "nearest", "additive"):
        known = _names(CONFIGS / "accuracy")
        raise UnknownNameError("accuracy table", name, ["measured", *known, *(f"{n}:nearest" for n in known)])
    points = {model.spec.path(plan): float(value) / 100 for plan, value in read_toml(path)["percent"].items()}
    fill: Literal["nearest", "additive"] = "nearest" if rule == "nearest" else "additive"
    quality = QualityTable.from_points(model.tree, name=name, points=points, fill=fill)
    return model.with_quality(quality)


def _models(file: _File, name: str, beside: Path) -> tuple[list[ServedModel], tuple[float, ...]]:
    """Return the models of a scenario, numbered in order, and their shares of the requests."""
    entries = [read_section(raw, _Model, name, "model") for raw in file.model] or [
        _Model(source=DEFAULT_MODEL)
    ]
    total = sum(entry.share for entry in entries)
    models = [
        with_accuracy(read_model(entry.source, beside), file.accuracy).numbered(number, weight=entry.weight)
        for number, entry in enumerate(entries)
    ]
    if len({model.name for model in models}) < len(models):
        raise ConfigError(f"{name} [model]: two models have the same name; give each its own")
    return models, tuple(entry.share / total for entry in entries)


def _goal(file: _File, name: str, models: Sequence[ServedModel]) -> Goal | None:
    """The goal of the scenario, with those of single models in it; None where none is stated."""
    texts = [raw.get("goal") for raw in file.model] or [None]
    own = {
        model.name: reachable_goal(text, [model])
        for model, text in zip(models, texts, strict=True)
        if text is not None
    }
    if file.goal is None and not own:
        return None
    goal = msgspec.structs.replace(parse_goal(file.goal) if file.goal is not None else Goal(), by_model=own)
    check_reachable(goal, models)
    return goal


def _source(model: str | Path) -> str:
    """Return a model's name, or the absolute path of its folder, so that a log of the run can be replayed."""
    return str(Path(model).resolve()) if Path(model).is_dir() else str(model)


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise ConfigError(f"no configuration at {path}; write one like those in {CONFIGS.name}/")
        return path
    path = CONFIGS / f"{name_or_path}.toml"
    if not path.is_file():
        raise UnknownNameError("scenario", name_or_path, scenario_names())
    return path


def scenario_names() -> list[str]:
    """List the scenarios shipped in configs/."""
    return [n for n in _names(CONFIGS) if "server" in read_toml(CONFIGS / f"{n}.toml")]


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def _autoscale(raw: dict[str, Any] | None, file: str, servers: int) -> AutoscaleOptions | None:
    return None if raw is None else read_section(raw, AutoscaleOptions, file, "autoscale").limited_to(servers)


def _gateway(raw: dict[str, Any], file: str) -> GatewayOptions:
    options = read_section(raw, GatewayOptions, file, "gateway")
    if 0 < options.step_s < SHORTEST_STEP_S:
        raise ConfigError(
            f"{file} [gateway]: step_s is {options.step_s:g}; give {SHORTEST_STEP_S:g} or more, "
            "or 0 to decide at each event"
        )
    return options


def _check_residents(options: SchedulerOptions, models: Sequence[ServedModel], file: str) -> None:
    known = {choice: None for model in models for choices in model.spec.segments for choice in choices}
    for choice in options.resident:
        if choice not in known and choice != "widest":
            raise ConfigError(
                f"{file} [scheduler]: resident names '{choice}', a choice that no model has; "
                f"give {', '.join(known)} or widest"
            )


def _check_servers(names: list[str], file: str) -> None:
    if not names:
        raise ConfigError(f"{file}: no servers; add a [[server]] section with name and device")
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice:
        raise ConfigError(f"{file} [server]: the name '{min(twice)}' stands twice; give each server its own")
    for name in names:
        if name in (GATEWAY_NAME, AUTOSCALER_NAME) or server_of(name) != name:
            raise ConfigError(f"{file} [server]: no server can be called '{name}'; rename it, without '#'")


def check_scheduler(options: SchedulerOptions, profile: Profile, where: str) -> None:
    """Refuse options that do not go with a device and its models."""
    largest = max(profile.instance_bytes.values())
    if options.vram_cap_bytes < largest:
        raise ConfigError(
            f"{where}: vram_cap_bytes is {options.vram_cap_bytes}, but the largest instance of "
            f"'{profile.name}' takes {largest}; raise the cap to at least that"
        )


# -- The setting of a serving run: stored in its log's header, and enough to make its state machines again.


class RunSetting(Struct, frozen=True, kw_only=True):
    """The scenario file as it was read, the router and the seed.

    `beside` is the folder with the scenario's own devices and profiles; empty for a shipped scenario.
    `for_clients` says whether the run used `Scenario.for_clients`. `first_id` is where the gateway began to
    number its blocks. `models` names the choices, so that the log can be read without the models.
    """

    scenario: dict[str, Any]
    router: str
    seed: Seed = 0
    beside: str = ""
    for_clients: bool = False
    first_id: Identity = 0
    models: tuple[ModelOutline, ...] = ()

    def header(self) -> Header:
        """Return the header of a log of this run."""
        return Header(slim=__version__, kind="serving", setting=msgspec.to_builtins(self))

    def build(self) -> Scenario:
        """Read the scenario again, as it was run."""
        beside = Path(self.beside) if self.beside else CONFIGS
        scenario = build_scenario(self.scenario, "the log's scenario", beside)
        return scenario.for_clients() if self.for_clients else scenario


def read_setting(header: Header) -> RunSetting:
    """Read the setting of a serving run from its log's header."""
    try:
        return msgspec.convert(header.setting, RunSetting)
    except msgspec.ValidationError as error:
        raise DataError(
            f"the log's header (written by slim {header.slim}) holds no setting of a serving run: {error}; "
            "replay it with the version that wrote it"
        ) from None
