"""What `slim model evaluate`, `info` and `pareto` do with a model folder, or with a shipped model."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli.models.tables import facts_table, plan_rows, plan_table
from slimsched.cli.progress import example_bar
from slimsched.core.config import ConfigError, DataError
from slimsched.models.data.dataset import Inputs, read_inputs, scored_images
from slimsched.models.elastic import example_inputs, pick_device
from slimsched.models.evaluate import agreement_name, image_inputs, measure
from slimsched.models.loading import load_model, trained_model
from slimsched.models.package import (
    CARD,
    QUALITY,
    ModelCard,
    is_trained,
    profile_paths,
    read_card,
    read_figures,
    read_quality,
    read_spec,
)
from slimsched.models.quality import CostFront, FrontPoint, QualityTable, write_quality
from slimsched.models.shipped import (
    PUBLISHED_PERCENT,
    default_card,
    default_figures,
    default_quality,
    default_spec,
    find_folder,
)
from slimsched.models.spec import DEFAULT_MODEL, SHIPPED_MODELS, ModelFigures, ModelSpec
from slimsched.models.spec import Path as Plan
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key
from slimsched.serving.scenario.files import CONFIGS, load_profile

if TYPE_CHECKING:
    from slimsched.cli.models.options import EvaluateOptions

# -- `slim model pareto` with several models or devices: fronts by arithmetic, device time and energy.

ARITHMETIC = "million multiply-accumulates per example"


Cost = Callable[[ServedModel, Plan], float]


def cost_fronts(models: Sequence[ServedModel], devices: Sequence[str]) -> list[CostFront]:
    """Return the fronts by arithmetic, then time and energy on each device that has a profile of all models.

    Time is the least device time per example over batch sizes and concurrency; energy is above idle.
    """
    fronts = [_front(ARITHMETIC, models, lambda model, plan: model.figures.plan_macs(model.spec, plan) / 1e6)]
    for device in devices:
        profiles = {model.name: load_profile(device, model, Path(CONFIGS)) for model in models}
        time_s = _summed(models, profiles, Profile.work_s)
        longest_s = max(time_s(model, model.spec.widest) for model in models)
        scale, unit = (1e6, "µs") if longest_s < 1e-3 else (1e3, "ms")
        fronts.append(_front(f"{unit} of {device} per example", models, time_s, scale))
        if all("modelled" not in profile.energy_source for profile in profiles.values()):
            energy_j = _summed(models, profiles, Profile.least_energy_j)
            fronts.append(_front(f"mJ above idle per example, {device}", models, energy_j, 1e3))
    return fronts


def _summed(
    models: Sequence[ServedModel],
    profiles: dict[str, Profile],
    figure: Callable[[Profile, Key, int], float],
) -> Cost:
    """Return the cost of a plan that is the sum of a figure of its steps, at the largest batch measured."""
    by_key = {
        model.name: {key: figure(profile, key, profile.batches[-1]) for key in model.keys.values()}
        for model in models
        for profile in [profiles[model.name]]
    }
    return lambda model, plan: sum(by_key[model.name][key] for key in model.legs(plan))


def _front(name: str, models: Sequence[ServedModel], cost: Cost, scale: float = 1.0) -> CostFront:
    points = [
        FrontPoint(
            model=model.name,
            plan=model.spec.text(plan),
            cost=scale * cost(model, plan),
            accuracy_percent=round(100 * model.measured.accuracy(plan), 2),
        )
        for model in models
        for plan in model.spec.plans
    ]
    return CostFront(cost=name, points=tuple(points))


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


# -- `slim model info`: what a model holds.

CARD_FACTS = "scored_on", "accuracy_percent", "epochs", "training_s", "trained_on", "weights_sha256", "notes"
"""What the card of a trained network says beside its shape, in the order shown."""


def show(source: str, *, as_json: bool) -> None:
    """Print the spec, the plans with figures and quality, and the profiles. Runs none of the model's code."""
    folder, card, spec = _find(source)
    figures: ModelFigures | None = None
    quality: QualityTable | None = None
    missing: list[str] = []
    if folder is None:
        figures, quality = default_figures(), default_quality()
    else:
        try:
            figures = read_figures(folder, spec)
        except DataError as error:
            missing.append(str(error))
        try:
            quality = read_quality(folder, spec)
        except DataError as error:
            missing.append(str(error))
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
        "profiles": [path.stem for path in profile_paths(folder)] if folder is not None else [],
        "missing": missing,
    }
    if card is not None:
        known = msgspec.to_builtins(card)
        facts |= known["shape"] | {name: known[name] for name in CARD_FACTS}
    accuracy = {plan: quality.accuracy(plan) for plan in spec.plans} if quality is not None else None
    rows = plan_rows(spec, figures, None, accuracy)
    if as_json:
        typer.echo(json.dumps(facts | {"plans": rows}))
        return
    console = Console(highlight=False)
    console.print(facts_table(facts, without=("missing",)))
    console.print(plan_table(spec, rows))
    for one in missing:
        console.print(one, markup=False)


def _find(source: str) -> tuple[Path | None, ModelCard | None, ModelSpec]:
    """Return a model's folder (the default model has none), its card if it was trained here, and its spec."""
    if source == DEFAULT_MODEL:
        return None, default_card(), default_spec()
    folder = find_folder(source)
    card = read_card(folder / CARD) if is_trained(folder) else None
    return folder, card, read_spec(folder)


# -- `slim model evaluate`: which answers of which plans are right.


def evaluate(source: str, options: "EvaluateOptions", *, as_json: bool) -> None:
    """Run plans on labelled data, or compare them with the widest one.

    If all plans ran, quality.npz is written into the model's folder; shipped models stay as they are.
    """
    folder, card, spec = _find(source)
    shipped = source in SHIPPED_MODELS
    plans = list(spec.plans)
    if options.widths != ["all"] and (options.widths or shipped):
        plans = list(dict.fromkeys(spec.path(text) for text in options.widths or PUBLISHED_PERCENT))
    agreement = options.agreement
    if agreement and spec.widest not in plans:
        plans.append(spec.widest)
    inputs, scored_on = _scored(options, spec, card, None if shipped else folder)
    # A trained network is scored in single precision, as it was trained, on every device.
    model = trained_model(folder, precision=torch.float32) if card or folder is None else load_model(folder)
    if inputs is None:
        inputs = Inputs(arrays=tuple(one.numpy() for one in example_inputs(model, options.examples)))
    name = f"accuracy on {scored_on}"
    if agreement:
        name = agreement_name(spec, len(inputs), random=options.data is None)
    with example_bar(f"{len(plans)} plans", len(inputs)) as bar:
        measured = measure(
            model,
            inputs,
            plans=plans,
            agreement=agreement,
            batch=options.batch,
            device=str(pick_device(options.device)),
            advance=lambda done: bar.advance(bar.task_ids[0], done),
        )
    figures = default_figures() if folder is None else None
    if folder is not None:
        with suppress(DataError):  # the table then shows no arithmetic
            figures = read_figures(folder, spec)
    accuracy = dict(zip(plans, measured.correct.mean(axis=1).tolist(), strict=True))
    rows = plan_rows(spec, figures, None, accuracy)
    for row in rows:
        if source == DEFAULT_MODEL and not agreement and row["plan"] in PUBLISHED_PERCENT:
            row["paper"] = PUBLISHED_PERCENT[row["plan"]] / 100
    written = None if shipped or plans != list(spec.plans) else folder
    confidences = None
    if written is not None:
        costs = [float(row.get("macs", sum(plan))) for row, plan in zip(rows, plans, strict=True)]
        if "macs" not in rows[0]:
            Console(stderr=True).print("no arithmetic is known: run slim model check for better levels")
        confidences = measured.confidences(spec.plans.index(spec.widest), costs)
        texts = [row["plan"] for row in rows]
        write_quality(written / QUALITY, measured.correct, name=name, texts=texts, confidences=confidences)
    if as_json:
        typer.echo(json.dumps({"name": name, "examples": len(inputs), "plans": rows}))
        return
    console = Console(highlight=False)
    console.print(plan_table(spec, rows))
    console.print(f"quality: {name}, {len(inputs)} examples", markup=False)
    if confidences is not None:
        console.print(f"how sure it is: {len(confidences.plans)} plans that are worth stopping at")
    if written is not None:
        console.print(f"written: {written / QUALITY}", soft_wrap=True)


def _scored(
    options: "EvaluateOptions", spec: ModelSpec, card: ModelCard | None, run: Path | None
) -> tuple[Inputs | None, str]:
    """The examples to run, and what they are; of a trained network only pictures it was not trained on."""
    data = options.data
    if data is None and not options.agreement:
        if "SLIM_DATA" not in os.environ:
            raise ConfigError(
                "name labelled data with --data or SLIM_DATA, or add --agreement to compare plans with the "
                "widest one"
            )
        data = Path(os.environ["SLIM_DATA"])
    if data is None:
        return None, ""
    if card is None or options.agreement or not data.is_dir():
        return read_inputs(data, spec, labelled=not options.agreement), data.name
    scored = scored_images(
        data, side=card.shape.image_size, classes=card.classes, run=run, everything=options.everything
    )
    return image_inputs(scored.images, len(card.classes)), scored.description
