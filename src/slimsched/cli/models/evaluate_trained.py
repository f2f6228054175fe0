"""`slim model evaluate` without a folder: the accuracy of a trained network, the shipped one by default."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slimsched.cli.models.table import accuracy_table, by_kind, read_plans
from slimsched.cli.progress import example_bar
from slimsched.core.config import ConfigError
from slimsched.models.data.dataset import scored_images
from slimsched.models.elastic import pick_device
from slimsched.models.evaluate import Evaluator, accuracy_percent
from slimsched.models.loading import load
from slimsched.models.package import network_figures, network_spec
from slimsched.models.quality import write_quality
from slimsched.models.shipped import PUBLISHED_PERCENT, shipped_folder

if TYPE_CHECKING:
    from slimsched.cli.models.model import EvaluateOptions


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
