"""`slim model evaluate DIR`: measure what each plan of a model folder is worth, and write quality.npz."""

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from slimsched.core.config import ConfigError, DataError

if TYPE_CHECKING:
    from slimsched.models.data.dataset import Inputs
    from slimsched.models.spec import ModelSpec


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
    from slimsched.cli.models.plan_table import plan_rows, plan_table
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
