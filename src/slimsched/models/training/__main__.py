"""Train and evaluate with few dependencies: `python -m slimsched.models.training --help`.

This needs only PyTorch, NumPy, msgspec and safetensors, so it runs on a GPU machine with nothing else
installed. `slim model train` and `slim model evaluate` do the same with progress bars and tables.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from msgspec import structs

from slimsched.kernel.errors import SlimError
from slimsched.models.data.scored_images import scored_images
from slimsched.models.device import pick_device
from slimsched.models.evaluation import Evaluator, accuracy_percent
from slimsched.models.model_files import TRAINED, save
from slimsched.models.network_choice import load
from slimsched.models.network_shape import network_figures, network_spec
from slimsched.models.quality import write_quality
from slimsched.models.slimresnet.paper_table import MIXED, UNIFORM
from slimsched.models.training.loop import EpochReport
from slimsched.models.training.recipe import override, read_recipe
from slimsched.models.training.run import run_training
from slimsched.models.width import WIDTH_TUPLES, format_widths

SHIPPED = "shipped"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; invalid input prints one line and returns exit status 2."""
    options = _parser().parse_args(arguments)
    try:
        return train(options) if options.command == "train" else evaluate(options)
    except SlimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def train(options: argparse.Namespace) -> int:
    """Train, or resume; stop before the time limit if there is one."""
    recipe = override(read_recipe(options.config), options.set)
    device = pick_device(options.device)
    teacher = None
    if options.teacher is not None:
        teacher = load(None if options.teacher == SHIPPED else Path(options.teacher)).net.to(device)
    start = None
    if options.start is not None:
        start = load(None if options.start == SHIPPED else Path(options.start)).net
    result = run_training(
        recipe,
        options.data,
        options.out,
        device=device,
        teacher=teacher,
        start=start,
        report=_print_epoch,
        limit_s=options.limit_s,
        copy_to=options.copy_to,
        workers=options.workers,
    )
    done = result.progress
    state = "trained" if result.finished else "stopped; run the same command to go on: trained"
    print(f"{state} {done.epoch} of {done.epochs or '?'} epochs in {done.seconds:.0f} s", flush=True)
    if result.card.accuracy_percent:
        print(f"accuracy on {result.card.scored_on}: {json.dumps(result.card.accuracy_percent)}")
    if result.warning:
        print(result.warning, file=sys.stderr)
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Score all 256 width tuples; write the bits, how sure plans are, and the card with the accuracies."""
    model = load(options.model)
    card = model.card
    scored = scored_images(options.data, side=card.shape.image_size, classes=card.classes, run=options.model)
    evaluator = Evaluator(model.net.to(pick_device(options.device)), card.colours)
    started_s = time.perf_counter()
    with torch.no_grad():
        measured = evaluator.measured(scored.images, WIDTH_TUPLES, batch=options.batch)
    correct, spec = measured.correct, network_spec(card.shape, card.name, card.classes)
    figures = network_figures(card.shape)
    costs = [float(figures.plan_macs(spec, plan)) for plan in spec.plans]
    confidences = measured.confidences(spec.plans.index(spec.widest), costs)
    percent = {widths: accuracy_percent(row) for widths, row in zip(WIDTH_TUPLES, correct, strict=True)}
    out = options.out or options.model
    out.mkdir(parents=True, exist_ok=True)
    write_quality(out / f"{TRAINED}-correct.npz", correct, confidences=confidences)
    chosen = {format_widths(widths): percent[widths] for widths in (*UNIFORM, *MIXED)}
    card = structs.replace(card, accuracy_percent=chosen, scored_on=scored.description)
    save(out, TRAINED, model.net, card)
    print(json.dumps(chosen))
    print(f"256 tuples on {scored.description} in {time.perf_counter() - started_s:.1f} s")
    print(f"mean {sum(percent.values()) / len(percent):.2f}, lowest {min(percent.values())}")
    return 0


def _print_epoch(report: EpochReport) -> None:
    text = (
        f"epoch {report.epoch}/{report.epochs or '?'}  loss {report.loss_widest:.3f} {report.loss_others:.3f}"
    )
    text += f"  {report.epoch_s:.2f} s  {report.elapsed_s:.0f} s in all"
    if report.accuracy:
        text += "  held out " + " ".join(f"{percent:.1f}" for percent in report.accuracy.values())
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slimsched.models.training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data", type=Path, required=True, help="folder of images")
    shared.add_argument("--device", default="auto", help="auto, cpu or cuda")
    training = commands.add_parser("train", parents=[shared], help="train, or go on after an interruption")
    training.add_argument("--config", type=Path, required=True, help="recipe file")
    training.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the model")
    training.add_argument("--teacher", help=f"model folder to learn from, or '{SHIPPED}'")
    training.add_argument("--start", help=f"model folder whose weights to begin with, or '{SHIPPED}'")
    training.add_argument("--limit-s", type=float, help="stop with a checkpoint before this many seconds")
    training.add_argument("--copy-to", type=Path, help="also write a half-precision checkpoint in parts here")
    training.add_argument("--workers", type=int, default=0, help="processes that unpack the images")
    training.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change one key of the recipe"
    )
    scoring = commands.add_parser("evaluate", parents=[shared], help="score all 256 width tuples")
    scoring.add_argument("--model", type=Path, required=True, help="folder that training wrote")
    scoring.add_argument(
        "--out", type=Path, help="folder for bits, weights and card; the model's own if left out"
    )
    scoring.add_argument("--batch", type=int, default=1000, help="images at a time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
