"""What `slim model evaluate`, `info` and `pareto` do with a model folder, or with a trained network."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli.models.tables import accuracy_table, by_kind, read_plans
from slimsched.cli.progress import example_bar
from slimsched.core.config import ConfigError, DataError
from slimsched.models.data.dataset import scored_images
from slimsched.models.elastic import pick_device
from slimsched.models.evaluate import Evaluator, accuracy_percent
from slimsched.models.loading import load
from slimsched.models.package import network_figures, network_spec
from slimsched.models.pareto import CostFront, FrontPoint
from slimsched.models.quality import write_quality
from slimsched.models.shipped import PUBLISHED_PERCENT, shipped_folder
from slimsched.models.spec import Path as Plan
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.scenario.files import CONFIGS, load_profile

if TYPE_CHECKING:
    from slimsched.cli.models.options import EvaluateOptions
    from slimsched.models.data.dataset import Inputs
    from slimsched.models.spec import ModelSpec

# -- `slim model pareto` with several models or devices: fronts by arithmetic, device time and energy.

ARITHMETIC = "million multiply-accumulates per example"


def cost_fronts(models: Sequence[ServedModel], devices: Sequence[str]) -> list[CostFront]:
    """Return the fronts by arithmetic, then time and energy on each device that has a profile of all models.

    Time is the least device time per example over batch sizes and concurrency; energy is above idle.
    """
    fronts = [_front(ARITHMETIC, models, {model.name: _macs(model) for model in models})]
    for device in devices:
        profiles = {model.name: load_profile(device, model, Path(CONFIGS)) for model in models}
        scale, unit = (1e6, "µs") if _longest_s(models, profiles) < 1e-3 else (1e3, "ms")
        times = {model.name: _time(model, profiles[model.name], scale) for model in models}
        fronts.append(_front(f"{unit} of {device} per example", models, times))
        if all("modelled" not in profile.energy_source for profile in profiles.values()):
            energy = {model.name: _energy(model, profiles[model.name]) for model in models}
            fronts.append(_front(f"mJ above idle per example, {device}", models, energy))
    return fronts


def fronts_table(fronts: Sequence[CostFront]) -> None:
    """Print, for each cost, the plans that no plan of any model beats."""
    console = Console()
    for front in fronts:
        best = front.best()
        table = Table(
            title=f"{len(best)} of {len(front.points)} plans are Pareto-optimal", title_justify="left"
        )
        for column in ("model", "plan"):
            table.add_column(column)
        table.add_column(front.cost, justify="right")
        table.add_column("accuracy %", justify="right")
        for point in best:
            table.add_row(point.model, point.plan, f"{point.cost:.4g}", f"{point.accuracy_percent:.2f}")
        console.print(table)


Cost = Callable[[Plan], float]


def _front(cost: str, models: Sequence[ServedModel], by_model: dict[str, Cost]) -> CostFront:
    points = [
        FrontPoint(
            model=model.name,
            plan=model.spec.text(plan),
            cost=by_model[model.name](plan),
            accuracy_percent=round(100 * model.measured.accuracy(plan), 2),
        )
        for model in models
        for plan in model.spec.plans
    ]
    return CostFront(cost=cost, points=tuple(points))


def _macs(model: ServedModel) -> Cost:
    return lambda plan: model.figures.plan_macs(model.spec, plan) / 1e6


def _time(model: ServedModel, profile: Profile, scale: float) -> Cost:
    work_s = {key: profile.work_s(key, profile.batches[-1]) for key in model.keys.values()}
    return lambda plan: scale * sum(work_s[key] for key in model.legs(plan))


def _energy(model: ServedModel, profile: Profile) -> Cost:
    energy_j = {key: profile.least_energy_j(key, profile.batches[-1]) for key in model.keys.values()}
    return lambda plan: 1e3 * sum(energy_j[key] for key in model.legs(plan))


def _longest_s(models: Sequence[ServedModel], profiles: dict[str, Profile]) -> float:
    return max(_time(model, profiles[model.name], 1.0)(model.spec.widest) for model in models)


# -- `slim model info DIR`: what a model folder holds.


def show_folder(folder: Path, *, as_json: bool = False) -> None:
    """Print the spec, the plans with figures and quality, and the profiles. Runs none of the model's code."""
    from slimsched.cli.models.tables import plan_rows, plan_table
    from slimsched.models.package import profile_paths, read_figures, read_quality, read_spec
    from slimsched.models.quality import QualityTable
    from slimsched.models.spec import ModelFigures

    spec = read_spec(folder)
    missing: list[str] = []
    figures: ModelFigures | None = None
    quality: QualityTable | None = None
    try:
        figures = read_figures(folder, spec)
    except DataError as error:
        missing.append(str(error))
    try:
        quality = read_quality(folder, spec)
    except DataError as error:
        missing.append(str(error))
    profiles = [path.stem for path in profile_paths(folder)]
    facts: dict[str, Any] = {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "inputs": [f"{one.name}: {one.datatype} {list(one.shape)}" for one in spec.inputs],
        "outputs": [f"{one.name}: {one.datatype} {list(one.shape)}" for one in spec.outputs],
        "segments": [", ".join(choices) for choices in spec.segments],
        "labels": len(spec.labels),
        "follows_previous": spec.follows_previous,
        "nested": spec.nested,
        "quality": quality.name if quality else None,
        "examples": quality.examples if quality else 0,
        "profiles": profiles,
        "missing": missing,
    }
    if as_json:
        typer.echo(json.dumps(facts | {"plans": plan_rows(spec, figures, None, quality)}))
        return
    console = Console(highlight=False)
    console.print(_facts_table(facts))
    console.print(plan_table(spec, figures, None, quality))
    for one in missing:
        console.print(one, markup=False)


def _facts_table(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, title=facts["name"], title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if key in ("name", "missing") or value in (None, "", []):
            continue
        lines = value if isinstance(value, list) else [value]
        if isinstance(value, bool):
            lines = ["yes" if value else "no"]
        table.add_row(key.replace("_", " "), "\n".join(str(line) for line in lines))
    return table


# -- `slim model evaluate` without a folder: the accuracy of a trained network, the shipped one by default.


def evaluate_trained(options: "EvaluateOptions", *, as_json: bool) -> None:
    """Score the plans on test images and print a table, or JSON."""
    data = options.data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if data is None:
        raise ConfigError("name the test images with --data or SLIM_DATA")
    trained, model = load(options.model), options.model
    card = trained.card
    spec = network_spec(card.shape, card.name, card.classes)
    plans = read_plans(options.widths, spec)
    if options.bits is not None and plans != list(spec.plans):
        raise ConfigError(f"--bits stores all {len(spec.plans)} plans; add --widths all")
    is_shipped = model is None or shipped_folder(str(model)) is not None
    run = None if model is None or is_shipped else model if model.is_dir() else model.parent
    scored = scored_images(
        data, side=card.shape.image_size, classes=card.classes, run=run, everything=options.everything
    )
    evaluator = Evaluator(trained.net.to(pick_device(options.device)), card.colours)
    widths = [tuple(float(name) for name in spec.text(plan).split(",")) for plan in plans]
    with example_bar(f"{len(plans)} plans", len(scored.images)) as bar:
        measured = evaluator.measured(
            scored.images,
            widths,
            batch=options.batch,
            advance=lambda done: bar.advance(bar.task_ids[0], done),
        )
    figures = network_figures(card.shape)
    if options.bits is not None:
        costs = [float(figures.plan_macs(spec, plan)) for plan in plans]
        confidences = measured.confidences(plans.index(spec.widest), costs)
        write_quality(options.bits, measured.correct, confidences=confidences)
    percent = {plan: accuracy_percent(row) for plan, row in zip(plans, measured.correct, strict=True)}
    if as_json:
        by_text = {spec.text(plan): value for plan, value in percent.items()}
        typer.echo(json.dumps({**by_kind(by_text), "scored_on": scored.description}))
        return
    published = PUBLISHED_PERCENT if is_shipped else {}
    accuracy_table(percent, spec, figures, scored_on=scored.description, published=published)


# -- `slim model evaluate DIR`: measure what each plan of a model folder is worth, and write quality.npz.


def evaluate_folder(
    folder: Path,
    data: Path | None,
    *,
    agreement: bool = False,
    examples: int = 256,
    batch: int = 64,
    device: str = "auto",
    as_json: bool = False,
) -> None:
    """Run every plan on labelled data, or compare every plan with the widest one."""
    from slimsched.cli.models.tables import plan_rows, plan_table
    from slimsched.cli.progress import example_bar
    from slimsched.models.data.dataset import Inputs
    from slimsched.models.elastic import example_inputs, pick_device
    from slimsched.models.evaluate import agreement_name, measure_accuracy, measure_agreement
    from slimsched.models.loading import load_model
    from slimsched.models.package import QUALITY, read_figures, read_quality, read_spec
    from slimsched.models.quality import write_quality
    from slimsched.models.spec import ModelFigures

    if data is None and not agreement:
        raise ConfigError(
            "name labelled data with --data, or add --agreement to compare plans with the widest one"
        )
    spec = read_spec(folder)
    inputs, scored_on = _scored(folder, data, spec, labelled=not agreement)
    model = load_model(folder)
    if inputs is None:
        inputs = Inputs(arrays=tuple(one.numpy() for one in example_inputs(model, examples)))
    measure = measure_agreement if agreement else measure_accuracy
    with example_bar(f"{len(spec.plans)} plans", len(inputs)) as bar:
        measured = measure(
            model,
            inputs,
            batch=batch,
            device=str(pick_device(device)),
            advance=lambda done: bar.advance(bar.task_ids[0], done),
        )
    name = agreement_name(spec, len(inputs), random=data is None) if agreement else f"accuracy on {scored_on}"
    texts = [spec.text(plan) for plan in spec.plans]
    figures: ModelFigures | None = None
    with suppress(DataError):  # the table then shows no arithmetic
        figures = read_figures(folder, spec)
    costs = [float(sum(plan)) if figures is None else figures.plan_macs(spec, plan) for plan in spec.plans]
    confidences = measured.confidences(spec.plans.index(spec.widest), costs)
    write_quality(folder / QUALITY, measured.correct, name=name, texts=texts, confidences=confidences)
    quality = read_quality(folder, spec)
    if as_json:
        rows = plan_rows(spec, figures, None, quality)
        typer.echo(json.dumps({"name": name, "examples": len(inputs), "plans": rows}))
        return
    console = Console(highlight=False)
    console.print(plan_table(spec, figures, None, quality))
    console.print(f"quality: {name}, {len(inputs)} examples", markup=False)
    if confidences is not None:
        console.print(f"how sure it is: {len(confidences.plans)} plans that are worth stopping at")
    console.print(f"written: {folder / QUALITY}", soft_wrap=True)


def _scored(
    folder: Path, data: Path | None, spec: "ModelSpec", *, labelled: bool
) -> "tuple[Inputs | None, str]":
    """The examples to run, and what they are; of a trained network only pictures it was not trained on."""
    from slimsched.models.data.dataset import Inputs, read_inputs, scored_images
    from slimsched.models.package import is_trained

    if data is None:
        return None, ""
    if not (labelled and data.is_dir() and is_trained(folder)):
        return read_inputs(data, spec, labelled=labelled), data.name
    scored = scored_images(data, side=spec.inputs[0].shape[1], classes=spec.labels, run=folder)
    images = scored.images
    return Inputs(arrays=(images.images,), labels=images.labels), scored.description
