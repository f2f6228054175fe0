"""A model on disk: one folder with a description, code, weights, and what was measured.

    model.toml            name, inputs, outputs, segments, plans, and where the code is
    model.py              the code, which the operator trusts; it is never received over the network
    weights.safetensors   the weights, never pickled
    quality.npz           the accuracy of each plan (slim model evaluate)
    figures.json          what each step computes and moves (slim model check)
    profiles/*.json       how fast devices run it (slim profile)

A folder that `slim model train` wrote (model.json, model.safetensors) also counts.
Nothing here needs torch: `loading.py` turns a folder into a model that runs.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from slimsched.core.config import (
    UNREADABLE,
    AccuracyFloor,
    ConfigError,
    CountOrZero,
    DataError,
    Seconds,
    Whole,
    convert,
    read_toml,
)
from slimsched.models.data.images import Colours
from slimsched.models.quality import QualityTable
from slimsched.models.quality import read_quality as read_table
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.spec import (
    ANY,
    START,
    ModelFigures,
    ModelSpec,
    PlanError,
    PlanTree,
    Step,
    StepFigures,
    TensorSpec,
    every_plan,
    uniform_plans,
)
from slimsched.models.spec import Path as Plan
from slimsched.models.width import SEGMENTS, WIDTHS

# -- `figures.json`: a model's figures with the names of its choices, so that people can read them.


class StepEntry(Struct, frozen=True, kw_only=True):
    """The cost of one step per example. `previous` is null if the step does not depend on it."""

    segment: CountOrZero
    choice: str
    previous: str | None
    macs: Whole
    moved: Whole


class PlaceEntry(Struct, frozen=True, kw_only=True):
    """A segment at a choice; `output` counts the numbers in its output per example."""

    segment: CountOrZero
    choice: str
    weights: Whole
    output: Whole
    workspace: Whole


class FiguresFile(Struct, frozen=True, kw_only=True):
    """The content of the file, for one version of a model."""

    model: str
    version: str
    steps: list[StepEntry]
    places: list[PlaceEntry]


def figures_json(spec: ModelSpec, figures: ModelFigures) -> bytes:
    """Write a model's figures as JSON."""
    names = spec.segments
    content = FiguresFile(
        model=spec.name,
        version=spec.version,
        steps=[
            StepEntry(
                segment=segment,
                choice=names[segment][choice],
                previous=names[segment - 1][previous] if previous >= 0 else None,
                macs=one.macs,
                moved=one.moved,
            )
            for (segment, choice, previous), one in figures.steps.items()
        ],
        places=[
            PlaceEntry(
                segment=segment,
                choice=names[segment][choice],
                weights=weights,
                output=figures.output[segment, choice],
                workspace=figures.workspace[segment, choice],
            )
            for (segment, choice), weights in figures.weights.items()
        ],
    )
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def read_figures_file(path: Path, spec: ModelSpec) -> ModelFigures:
    """Read a model's figures; they must cover every step of the spec."""
    again = f"run slim model check {path.parent}"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=FiguresFile)
    except FileNotFoundError:
        raise DataError(f"there is no {path}; {again} to write it") from None
    except UNREADABLE as error:
        raise DataError(f"{path} holds no figures ({error}); {again} again") from None
    try:
        steps = {_step(spec, one): StepFigures(one.macs, one.moved) for one in content.steps}
        places = {(one.segment, spec.choice(one.segment, one.choice)): one for one in content.places}
    except (PlanError, IndexError) as error:
        raise DataError(f"{path} is of another model than its description ({error}); {again} again") from None
    if set(steps) != set(spec.steps()) or set(places) != set(spec.places()):
        raise DataError(
            f"{path} was written for other segments or plans than the description has now; {again} again"
        )
    return ModelFigures(
        steps=steps,
        weights={place: one.weights for place, one in places.items()},
        output={place: one.output for place, one in places.items()},
        workspace={place: one.workspace for place, one in places.items()},
    )


def _step(spec: ModelSpec, one: StepEntry) -> Step:
    choice = spec.choice(one.segment, one.choice)
    if not spec.follows_previous:
        return one.segment, choice, ANY
    if one.previous is None:
        return one.segment, choice, START
    return one.segment, choice, spec.choice(one.segment - 1, one.previous)


# -- The spec and the figures that follow from the shape of a SlimResNet or a SlimViT.

Shape = NetworkShape | VitShape


@cache
def network_spec(shape: Shape, name: str = "network", labels: tuple[str, ...] = ()) -> ModelSpec:
    """Describe a network that turns images into class logits, with any width in any segment."""
    segments = (tuple(map(str, WIDTHS)),) * SEGMENTS
    return ModelSpec(
        name=name.replace("/", "-"),
        inputs=(TensorSpec(name="images", datatype="UINT8", shape=(3, shape.image_size, shape.image_size)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(shape.classes,)),),
        segments=segments,
        plans=every_plan(segments),
        follows_previous=shape.follows_previous,
        nested=True,
        labels=labels,
        description=shape.description,
    )


@cache
def network_figures(shape: Shape) -> ModelFigures:
    """Compute the cost and output size of each step."""
    spec = network_spec(shape)
    places = {(segment, choice): WIDTHS[choice] for segment, choice in spec.places()}

    def step(segment: int, choice: int, previous: int) -> StepFigures:
        before, width = None if previous < 0 else WIDTHS[previous], WIDTHS[choice]
        return StepFigures(shape.macs(segment, before, width), shape.moved(segment, width))

    return ModelFigures(
        steps={one: step(*one) for one in spec.steps()},
        weights={place: shape.parameters(place[0], width) for place, width in places.items()},
        output={place: shape.output_elements(place[0], width) for place, width in places.items()},
        workspace={place: shape.workspace(place[0], width) for place, width in places.items()},
    )


DESCRIPTION, QUALITY, FIGURES, PROFILES = "model.toml", "quality.npz", "figures.json", "profiles"
CARD = "model.json"
"""The description that `slim model train` writes instead of model.toml."""


class SegmentEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [[segment]]: the names of its choices, narrowest first."""

    choices: tuple[str, ...]


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of model.toml."""

    name: str
    code: str
    segment: tuple[SegmentEntry, ...]
    input: tuple[TensorSpec, ...]
    output: tuple[TensorSpec, ...]
    version: str = "1"
    description: str = ""
    weights: str | None = None
    plans: str | tuple[tuple[str, ...], ...] = "all"
    follows_previous: bool = False
    nested: bool = False
    labels: str | tuple[str, ...] = field(default=())


class ModelCard(Struct, frozen=True, kw_only=True):
    """What a network is: its shape and classes, how its images are normalized, and how it was trained.

    `shape` is a NetworkShape or a VitShape. `accuracy_percent` was measured on `scored_on`, such as
    '60 held-out pictures'.
    """

    name: str
    colours: Colours
    classes: tuple[str, ...]
    recipe: dict[str, Any]
    epochs: CountOrZero
    training_s: Seconds
    trained_on: str
    weights_sha256: str = ""
    scored_on: str = ""
    accuracy_percent: dict[str, AccuracyFloor] = {}
    notes: tuple[str, ...] = ()
    shape: Any

    @property
    def spec(self) -> ModelSpec:
        """The description of the network."""
        return network_spec(self.shape, self.name, self.classes)


def read_card(path: Path) -> ModelCard:
    """Read the card of a trained network."""
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except OSError:
        raise DataError(
            f"no model at {path}; name a folder that slim model train wrote, or leave --model out"
        ) from None
    except UNREADABLE as error:
        raise DataError(f"{path} is no model card: {error}") from None
    kind: type[Shape] = VitShape if isinstance(card.shape, dict) and "heads" in card.shape else NetworkShape
    shape = convert(card.shape, kind, f"the shape of model '{card.name}'")
    if len(card.classes) != shape.classes:
        raise DataError(
            f"{path}: {len(card.classes)} class names, but the network has {shape.classes} classes"
        )
    return structs.replace(card, shape=shape)


def read_description(folder: Path) -> Description:
    """Read model.toml; errors name the part that is wrong."""
    path = folder / DESCRIPTION
    try:
        return msgspec.convert(read_toml(path), Description)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"no model in {folder}: it holds neither {DESCRIPTION} nor {CARD}; "
            f"make a skeleton with slim model new {folder}"
        ) from None
    except (OSError, RecursionError, ConfigError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except msgspec.ValidationError as error:
        known = ", ".join(Description.__struct_fields__)
        raise ConfigError(f"{path}: {_in_toml_words(str(error))}; known keys: {known}") from None


def read_spec(folder: Path) -> ModelSpec:
    """Read a model's spec, without torch and without running its code."""
    if is_trained(folder):
        return read_card(folder / CARD).spec
    content = read_description(folder)
    path = folder / DESCRIPTION
    segments = tuple(entry.choices for entry in content.segment)
    try:
        _check_order(segments)
        spec = ModelSpec(
            name=content.name,
            version=content.version,
            inputs=content.input,
            outputs=content.output,
            segments=segments,
            plans=_read_plans(content.plans, segments),
            follows_previous=content.follows_previous,
            nested=content.nested,
            labels=_read_labels(folder, content.labels),
            description=content.description,
        )
        _check_labels(spec)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return spec


def read_quality(folder: Path, spec: ModelSpec | None = None) -> QualityTable:
    """Read the accuracy of each plan, which `slim model evaluate` writes."""
    spec = spec or read_spec(folder)
    path = folder / QUALITY
    if not path.exists():
        raise DataError(
            f"{folder} has no {QUALITY}; write it with slim model evaluate {folder} --data FOLDER, "
            "or without labels with --agreement"
        )
    return read_table(path, PlanTree(spec.plans), texts=[spec.text(plan) for plan in spec.plans])


def read_figures(folder: Path, spec: ModelSpec | None = None) -> ModelFigures:
    """Read the figures of each step, which `slim model check` writes."""
    path = folder / FIGURES
    if is_trained(folder) and not path.exists():
        return network_figures(read_card(folder / CARD).shape)
    return read_figures_file(path, spec or read_spec(folder))


def profile_paths(folder: Path) -> list[Path]:
    """List the profiles measured on devices, by name."""
    return sorted((folder / PROFILES).glob("*.json"))


def is_trained(folder: Path) -> bool:
    """Whether `slim model train` wrote this folder."""
    return (folder / CARD).is_file() and not (folder / DESCRIPTION).exists()


def _read_plans(
    plans: str | tuple[tuple[str, ...], ...], segments: tuple[tuple[str, ...], ...]
) -> tuple[Plan, ...]:
    if plans == "all":
        return every_plan(segments)
    if plans == "uniform":
        return uniform_plans(segments)
    if isinstance(plans, str):
        raise ConfigError(
            f'plans = \'{plans}\' is not known; write "all", "uniform", or a list of plans such as '
            '[["0.5", "0.5"], ["1.0", "1.0"]]'
        )
    return tuple(_read_plan(plan, segments) for plan in plans)


def _read_plan(names: tuple[str, ...], segments: tuple[tuple[str, ...], ...]) -> Plan:
    if not 1 <= len(names) <= len(segments):
        raise ConfigError(
            f"plan {list(names)} names {len(names)} choices; the model has {len(segments)} segments, "
            f"so name 1 to {len(segments)}"
        )
    for number, name in enumerate(names):
        if name not in segments[number]:
            raise ConfigError(
                f"plan {list(names)}: segment {number} has no choice '{name}'; "
                f"it has {', '.join(segments[number])}"
            )
    return tuple(segments[number].index(name) for number, name in enumerate(names))


def _read_labels(folder: Path, labels: str | tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(labels, str):
        return labels
    try:
        lines = (folder / labels).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the labels in {folder / labels} ({error}); write one label per line"
        ) from None
    return tuple(line.strip() for line in lines if line.strip())


def _check_labels(spec: ModelSpec) -> None:
    classes = spec.outputs[0].shape[-1] if spec.outputs[0].shape else 1
    if spec.labels and len(spec.labels) != classes:
        raise ConfigError(
            f"there are {len(spec.labels)} labels, but '{spec.outputs[0].name}' has {classes} classes; "
            "give one label per class, in the order of the classes"
        )


def _check_order(segments: tuple[tuple[str, ...], ...]) -> None:
    """Raise ConfigError if numeric names do not ascend; `slim model check` checks other names."""
    for number, choices in enumerate(segments):
        try:
            values = [float(name) for name in choices]
        except ValueError:
            continue
        if values != sorted(values):
            ordered = sorted(choices, key=float)
            raise ConfigError(
                f"segment {number}: choices {list(choices)} are out of order; narrowest first is {ordered}"
            )


def _in_toml_words(message: str) -> str:
    """Use TOML words in a message: 'Object' becomes 'the table', `$` becomes 'the top'."""
    return message.replace("Object", "the table").replace(" - at `$.", " - at `").replace("`$`", "the top")
