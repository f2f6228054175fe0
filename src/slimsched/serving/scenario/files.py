"""Reads scenarios, devices and accuracy tables; every error names the file, section, key and remedy.

Also where models come from, and the setting of a run that its log keeps so that it can be replayed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

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
from slimsched.models.cache import cache_folder
from slimsched.models.package import (
    FIGURES,
    PROFILES,
    QUALITY,
    is_trained,
    read_figures,
    read_figures_file,
    read_quality,
    read_spec,
)
from slimsched.models.quality import QualityTable
from slimsched.models.shipped import (
    default_figures,
    default_quality,
    default_spec,
    find_folder,
)
from slimsched.models.spec import DEFAULT_MODEL, ModelFigures, ModelSpec, PlanTree
from slimsched.serving.domain.cluster import (
    AUTOSCALER_NAME,
    GATEWAY_NAME,
    Cluster,
    Fault,
    Host,
    Link,
    server_of,
)
from slimsched.serving.domain.model import ModelOutline, ServedModel, outlines
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


def shipped_model() -> ServedModel:
    """Return the default model, with its measured quality."""
    return ServedModel(default_spec(), default_quality(), default_figures())


def read_model(source: str, beside: Path | None = None, *, rated: bool | None = True) -> ServedModel:
    """Read a model without its code: a shipped one by its name, any other from its folder.

    A folder is looked up beside the scenario first, then in the working directory. If it has no figures,
    those in the cache count. Without `rated`, nobody asks how accurate the plans are; with None, they need
    not have been evaluated. Then wider plans are assumed to be better.
    """
    if source == DEFAULT_MODEL:
        return shipped_model()
    folder = find_folder(source, beside)
    spec = read_spec(folder)
    is_rated = (folder / QUALITY).exists() if rated is None else rated
    quality = read_quality(folder, spec) if is_rated else unrated(spec)
    return ServedModel(spec, quality, _figures(folder, spec), folder=str(folder.resolve()))


def _figures(folder: Path, spec: ModelSpec) -> ModelFigures:
    """Read a folder's own figures, or else those that were kept in the cache."""
    has_own = is_trained(folder) or (folder / FIGURES).exists()
    kept = None if has_own else cache_folder(str(folder)) / FIGURES
    return read_figures(folder, spec) if kept is None or not kept.exists() else read_figures_file(kept, spec)


IF_MEASURED = "if-measured"
"""Lets a scenario have models whose plans nobody has evaluated."""

ASSUMED_LOSS = 0.2
"""How much less accurate the narrowest plan is assumed to be than the widest, as long as nobody knows."""


def unrated(spec: ModelSpec) -> QualityTable:
    """Return a table in which wider plans are better, by no known amount."""
    tree = PlanTree(spec.plans)
    sizes = np.array([sum(plan) + len(plan) for plan in tree.plans], dtype=float)
    share = (sizes.max() - sizes) / max(1.0, np.ptp(sizes))
    accuracy, measured = 1.0 - ASSUMED_LOSS * share, np.zeros(len(share), dtype=bool)
    return QualityTable(tree, name="not measured yet", accuracy=accuracy, measured=measured)


def load_elastic(model: ServedModel) -> "ElasticModel":
    """Load a model's code and weights."""
    from slimsched.models.loading import load_model, trained_model

    return load_model(Path(model.folder)) if model.folder else trained_model()


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

    @property
    def speed(self) -> float:
        """How fast it is, beside its device's profile."""
        return 1.0 if self.host is None else self.host.speed


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the models in a scenario file: the shipped one by name, or a model folder."""

    source: str  # a shipped model by name, or a model folder
    share: PositiveAmount = 1.0  # its share of the requests
    weight: PositiveAmount = 1.0  # what its accuracy counts beside other models
    goal: str | None = None  # its own goal
    quality: str = ""  # a folder with another quality table than its own


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario file."""

    name: Name  # name of the scenario
    server: list[dict[str, Any]]  # the servers, [[server]]
    load: dict[str, Any]  # the load, [load]
    link: dict[str, Any]  # the servers' links, [link]
    description: str = ""  # one line for people
    model: list[dict[str, Any]] = []  # the models, [[model]]; without any, the shipped one
    accuracy: Name = "measured"  # accuracy table: measured, if-measured, paper or paper:nearest
    profile: list[ProfileRecord] = []  # profiles of devices, before those that are found by name
    goal: str | None = None  # the goal of routers that follow one; see goals.md
    gateway_link: dict[str, Any] | None = None  # the gateway's link, [gateway_link]; else [link]
    gateway: dict[str, Any] = {}  # how the gateway works, [gateway]
    scheduler: dict[str, Any] = {}  # the local schedulers, [scheduler]
    telemetry: dict[str, Any] = {}  # reports of servers, [telemetry]
    autoscale: dict[str, Any] | None = None  # how many servers run, [autoscale]; without it, all
    fault: list[dict[str, Any]] = []  # faults to put on the timeline, [[fault]]
    noise: dict[str, Any] = {}  # how much batch times vary, [noise]


def build_scenario(raw: dict[str, Any], name: str, beside: Path) -> Scenario:
    """Check a scenario file section by section and build the scenario."""
    file = read_section(raw, _File, name, "")
    options = read_section(file.scheduler, SchedulerOptions, name, "scheduler")
    link = gateway_link = read_section(file.link, Link, name, "link")
    if file.gateway_link is not None:
        gateway_link = read_section(file.gateway_link, Link, name, "gateway_link")
    models, shares = _models(file, name, beside)
    load = read_section(file.load, Load, name, "load")
    load.check()
    if load.plan:
        for model in models:
            model.spec.path(load.plan)
    servers = _servers(file, name, beside, models, load)
    costs = tuple(one.kind.service for one in servers)
    cluster = Cluster(
        names=[one.name for one in servers],
        profiles=[one.profile for one in servers],
        models=models,
        links=[one.kind.link or link for one in servers],
        gateway_link=gateway_link,
        batch_limit=options.batch_limit or max(one.scheduler.batch_limit for one in servers),
    )
    autoscale = None
    if file.autoscale is not None:
        autoscale = read_section(file.autoscale, AutoscaleOptions, name, "autoscale")
    scenario = Scenario(
        name=file.name,
        description=file.description,
        cluster=cluster,
        schedulers=tuple(one.scheduler for one in servers),
        gateway=_gateway(file.gateway, name),
        telemetry=read_section(file.telemetry, TelemetryOptions, name, "telemetry"),
        load=load,
        shares=shares,
        goal=_goal(file, name, models),
        hosts=tuple(one.kind.host for one in servers),
        costs=costs if any(cost != ALONE for cost in costs) else (),
        noise=read_section(file.noise, ServiceNoise, name, "noise"),
        devices=tuple((one.kind.device, one.kind.speed) for one in servers),
        beside=str(beside),
        autoscale=autoscale and autoscale.limited_to(len(servers)),
    )
    if scenario.goal is not None:
        check_affordable(scenario.goal, cluster)
    return scenario.with_faults(tuple(read_section(raw, Fault, name, "fault") for raw in file.fault))


class _OneServer(NamedTuple):
    """One server of the cluster, and the section that it comes from."""

    name: str
    kind: _Server
    scheduler: SchedulerOptions
    profile: Profile


def _servers(
    file: _File, name: str, beside: Path, models: Sequence[ServedModel], load: Load
) -> list[_OneServer]:
    """Read the servers, `count` of each section; work out what their options leave to the profile."""
    servers: list[_OneServer] = []
    known: dict[tuple[str, float], Profile] = {}
    for raw in file.server:
        kind = read_section(raw, _Server, name, "server")
        own = read_section({**file.scheduler, **kind.scheduler}, SchedulerOptions, name, "server.scheduler")
        if kind.host is not None and not own.instance_limit:
            own = msgspec.structs.replace(own, instance_limit=kind.host.instance_limit)
        if len(servers) + kind.count > MOST_SERVERS:
            raise ConfigError(f"{name} [server]: more than {MOST_SERVERS:,} servers; give a smaller count")
        if (device := (kind.device, kind.speed)) not in known:
            parts = [load_profile(kind.device, model, beside, file.profile) for model in models]
            known[device] = Profile.joined(parts).slowed(1 / kind.speed)
        profile = known[device]
        if not own.batch_limit:
            longest_s = own.batch_limit_s or DEADLINE_SHARE * load.deadline_s
            most = useful_batch(profile, models, longest_s)
            own = replace(own, batch_limit=most, batch_limit_s=longest_s, batch_limit_by="profile")
        check_scheduler(own, profile, f"{name} [server] '{kind.name}'")
        _check_residents(own, models, name)
        names = [f"{kind.name}-{number}" for number in range(kind.count)] if kind.count > 1 else [kind.name]
        servers += [_OneServer(one, kind, own, profile) for one in names]
    _check_servers([one.name for one in servers], name)
    return servers


def load_profile(name: str, model: ServedModel, beside: Path, given: Sequence[ProfileRecord] = ()) -> Profile:
    """Return a model's profile on a device, by name or path; profiles that are `given` come first.

    The profile is measured (a .json file in the model's folder, beside the scenario or in the cache), or
    modelled from the device's data sheet (a .toml file).
    """
    sheets = (beside / name, beside / "devices" / f"{name}.toml", CONFIGS / "devices" / f"{name}.toml")
    sheet = next((path for path in sheets if path.is_file()), None)
    others = []
    named = _profiles_named(name, [beside, *_profile_folders(model, beside)]) if sheet is None else ()
    own = (record for record in given if record.name == name)
    for record in chain(own, measured_profiles(name, model, beside), map(read_profile, named)):
        if record.model == model.name:
            return record.profile(model)
        others.append(record.model)
    if sheet is not None:
        return modelled_profile(read_section(read_toml(sheet), Device, sheet.name), model)
    if others:
        raise DataError(
            f"device '{name}' has a profile of model '{others[0]}', but none of model '{model.name}'; "
            f"measure it with: slim model profile {model.folder or model.name} --name {name}"
        )
    known = sorted(path.stem for path in (CONFIGS / "profiles").glob("*.json"))
    raise UnknownNameError("device", name, [*known, *_names(CONFIGS / "devices")])


def measured_profiles(name: str, model: ServedModel, beside: Path) -> Iterator[ProfileRecord]:
    """Yield the profiles whose files have this name, also of other models; those in the cache come last."""
    for path in (beside / name, *(folder / f"{name}.json" for folder in _profile_folders(model, beside))):
        if path.suffix == ".json" and path.is_file():
            yield read_profile(path)
    if (kept := kept_profile(name, model)) is not None:
        yield kept


def kept_profile(name: str, model: ServedModel) -> ProfileRecord | None:
    """Return what the cache has about a model on a device; None if it has nothing that can be read."""
    path = cache_folder(model.entry.source) / PROFILES / f"{name}.json"
    try:
        record = read_profile(path) if path.is_file() else None
    except DataError:  # of another version, say: it is measured again
        return None
    return record if record is not None and sorted(record.steps) == sorted(model.keys) else None


def _profile_folders(model: ServedModel, beside: Path) -> list[Path]:
    own = [Path(model.folder) / PROFILES] if model.folder else []
    return [*own, beside / PROFILES, CONFIGS / PROFILES]


def _profiles_named(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Find profiles whose own name is this one, whatever their files are called."""
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        if path.stat().st_size <= LARGEST_BYTES:
            with suppress(*UNREADABLE, AttributeError):  # not a profile
                if msgspec.json.decode(path.read_bytes()).get("name") == name:
                    yield path


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
    return model.with_quality(QualityTable.from_points(model.tree, name=name, points=points, fill=fill))


def _models(file: _File, name: str, beside: Path) -> tuple[list[ServedModel], tuple[float, ...]]:
    """Return the models of a scenario, numbered in order, and their shares of the requests."""
    entries = [read_section(raw, _Model, name, "model") for raw in file.model] or [
        _Model(source=DEFAULT_MODEL)
    ]
    total = sum(entry.share for entry in entries)
    rated, accuracy = (None, "measured") if file.accuracy == IF_MEASURED else (True, file.accuracy)
    models = list[ServedModel]()
    for number, entry in enumerate(entries):
        model = read_model(entry.source, beside, rated=False if entry.quality else rated)
        if entry.quality:
            model = model.with_quality(read_quality(Path(entry.quality), model.spec))
        models.append(with_accuracy(model, accuracy).numbered(number, weight=entry.weight))
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


def source_of(model: str | Path) -> str:
    """Return a model's name, or the absolute path of its folder, so that a log of the run can be replayed."""
    return str(Path(model).resolve()) if Path(model).is_dir() else str(model)


def with_kept_quality(entry: dict[str, Any], beside: Path | None = None) -> dict[str, Any]:
    """Name what was measured in service, if nothing better is known of a model; logs then say it too."""
    source = entry["source"]
    if source == DEFAULT_MODEL or (find_folder(source, beside) / QUALITY).exists():
        return entry
    kept = cache_folder(source, beside)
    return {"quality": str(kept), **entry} if (kept / QUALITY).exists() else entry


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


class ChosenScenario(Struct, frozen=True, kw_only=True):
    """A scenario that was chosen by name or file, what it was read from, and what was changed of it."""

    scenario: Scenario
    raw: dict[str, Any]
    """The scenario file as it was read, with what options changed."""
    path: Path
    is_shipped: bool

    def setting(self, router: str, seed: int = 0, *, for_clients: bool = False) -> RunSetting:
        """Return what the log of such a run must say, so that it can be replayed."""
        return RunSetting(
            scenario=self.raw,
            beside="" if self.is_shipped else str(self.path.parent.resolve()),
            router=router,
            seed=seed,
            for_clients=for_clients,
            models=outlines(self.scenario.cluster.models),
        )

    def for_clients(self, queue_s: float) -> "ChosenScenario":
        """Return it with what clients are promised; without a deadline they wait up to `queue_s`."""
        scenario = self.scenario.for_clients()
        return replace(
            self,
            scenario=replace(scenario, gateway=replace(scenario.gateway, queue_s=queue_s)),
            raw={**self.raw, "gateway": {**self.raw.get("gateway", {}), "queue_s": queue_s}},
        )


def choose_scenario(
    name: str, config: Path | None = None, models: Sequence[str | Path] = (), **changed: str | None
) -> ChosenScenario:
    """Read a shipped scenario, or a file, with some of its keys changed."""
    path = _find(name if config is None else str(config))
    raw = read_toml(path) | {key: value for key, value in changed.items() if value is not None}
    if models:
        raw["model"] = [{"source": source_of(model)} for model in models]
    if raw.get("accuracy") == IF_MEASURED:
        raw["model"] = [with_kept_quality(one, path.parent) for one in raw.get("model", ())]
    scenario = build_scenario(raw, path.name, path.parent)
    return ChosenScenario(scenario=scenario, raw=raw, path=path, is_shipped=config is None)


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
    return choose_scenario(name_or_path, models=models, goal=goal, accuracy=accuracy).scenario


def read_setting(header: Header) -> RunSetting:
    """Read the setting of a serving run from its log's header."""
    try:
        return msgspec.convert(header.setting, RunSetting)
    except msgspec.ValidationError as error:
        raise DataError(
            f"the log's header (written by slim {header.slim}) holds no setting of a serving run: {error}; "
            "replay it with the version that wrote it"
        ) from None
