"""`figures.json`: a model's figures with the names of its choices, so that people can read them."""

from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import UNREADABLE, CountOrZero, DataError, Whole
from slimsched.models.figures import ModelFigures, StepFigures
from slimsched.models.spec import ANY, START, ModelSpec, PlanError, Step


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


def write_figures_file(path: Path, spec: ModelSpec, figures: ModelFigures) -> None:
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
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


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
