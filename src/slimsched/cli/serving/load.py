"""`slim load`: an open-loop load generator for any Open Inference Protocol v2 server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slimsched.cli.serving import scenario as options
from slimsched.cli.serving.event_loop import run
from slimsched.kernel.errors import ConfigError
from slimsched.serving.domain.request import NEVER_S

if TYPE_CHECKING:
    from slimsched.serving.api.load_report import Latency, LoadReport

PUNCTUAL_S = 0.01
"""A 99th percentile of the dispatch error above this is worth a warning."""


def command(
    url: Annotated[
        str, typer.Option("--url", envvar="SLIM_URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    rate: Annotated[float, typer.Option("--rate", help="Mean requests a second.")] = 20.0,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to send.")] = 10.0,
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            help="poisson, bursty, fitted (to a real trace), diurnal, step, or the path of a trace file.",
        ),
    ] = "poisson",
    per_request: Annotated[int, typer.Option("--images", help="Images a request.")] = 1,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with CIFAR-100, for accuracy; else SLIM_DATA.")
    ] = None,
    width: Annotated[float | None, typer.Option("--width", help="Width to ask for.")] = None,
    min_accuracy: Annotated[float | None, typer.Option("--min-accuracy", help="Accuracy to ask for.")] = None,
    deadline_ms: Annotated[float | None, typer.Option("--deadline-ms", help="Deadline to ask for.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Priority to ask for.")] = None,
    max_energy_mj: Annotated[
        float | None, typer.Option("--max-energy-mj", help="Energy ceiling to ask for.")
    ] = None,
    token: Annotated[str, typer.Option("--token", envvar="SLIM_TOKEN", help="Bearer token.")] = "",
    ca_file: Annotated[Path | None, typer.Option("--ca-file", help="Certificate to trust (PEM).")] = None,
    model: Annotated[str, typer.Option("--model", help="The model's name.")] = "slimresnet",
    tensor: Annotated[str, typer.Option("--input", help="Its input's name.")] = "images",
    output: Annotated[str, typer.Option("--output", help="Its output with classes or scores.")] = "classes",
    datatype: Annotated[str, typer.Option("--datatype", help="UINT8, or FP32 in [0, 1].")] = "UINT8",
    connections: Annotated[int, typer.Option("--connections", help="Most connections at once.")] = 512,
    seed: options.Seed = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw rates and latency to a PNG.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Send requests when they are due, whatever became of those before, and report what came back.

    Latency counts from the time a request was due, so stalls are charged to all who had to wait.

    Examples:

      slim load --rate 50 --seconds 20

      slim load --arrivals bursty --rate 80 --deadline-ms 250 --plot load.png

      slim load --url http://other:8000 --model resnet --output logits --datatype FP32 --json
    """
    from slimsched.cli.serving.images import test_images
    from slimsched.serving.api.load_generator import LoadGenerator, Target, due_times
    from slimsched.serving.api.load_report import as_json as to_json
    from slimsched.serving.api.load_report import report

    if per_request < 1 or connections < 1:
        raise ConfigError(f"--images {per_request}, --connections {connections}: both must be at least 1")
    images, labels, kind = test_images(data)
    due_s, numbers = due_times(arrivals, rate, seconds, seed, len(images), per_request)
    terms = {
        "width": width,
        "min_accuracy": min_accuracy,
        "deadline_ms": deadline_ms,
        "priority": priority,
        "max_energy_mj": max_energy_mj,
    }
    target = Target(token=token, model=model, input=tensor, output=output, datatype=datatype)
    asked = {name: value for name, value in terms.items() if value is not None}
    generator = LoadGenerator(
        url,
        target.pixels(images),
        target.prefix(asked),
        ca_file=None if ca_file is None else str(ca_file),
        connections=connections,
    )
    console = Console(stderr=True)
    with _bar(console) as bar:
        task = bar.add_task("sending", total=len(due_s))

        def progress(sent: int, answered: int) -> None:
            bar.update(task, completed=answered, description=f"{sent} sent, {answered} answered")

        sent = run(generator.run(due_s, numbers, progress))
    deadline_s = NEVER_S if deadline_ms is None else deadline_ms / 1e3
    found = report(sent, labels, seconds=seconds, deadline_s=deadline_s)
    if plot is not None:
        from slimsched.serving.api.load_report import plot_load

        plot_load(sent, f"{arrivals}, {rate:g} requests/s, {url}", plot, deadline_s=deadline_s)
    if as_json:
        print(to_json(found))
        return
    _print(Console(soft_wrap=True), found, kind)
    if plot is not None:
        Console().print(f"written: {plot}")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _print(console: Console, found: "LoadReport", kind: str) -> None:
    outcomes = ", ".join(f"{name}: {count}" for name, count in sorted(found.outcomes.items()))
    lines = [
        f"[bold]{found.requests} requests, {found.images} images[/bold] ({kind}) in {found.seconds:g} s: "
        f"{found.offered_per_s:.1f} images/s offered, {found.answered_per_s:.1f} answered, "
        f"{found.goodput_per_s:.1f} in time ({found.in_time_share:.1%})",
        f"outcomes by HTTP status: {outcomes}",
        f"latency from due time:   {_spread(found.latency)}",
        f"latency from send:       {_spread(found.latency_from_send)}",
        f"dispatch error:          {_spread(found.dispatch_error)}",
    ]
    if found.accuracy is not None:
        lines.append(
            f"accuracy on labels: {found.accuracy:.2%}; correct and in time: "
            f"{found.correct_in_time_per_s:.1f} images/s"
        )
    if found.predicted_accuracy is not None:
        widths = ", ".join(f"{width}: {share:.0%}" for width, share in found.widths.items())
        energy = "" if found.energy_mj_per_image is None else f"; {found.energy_mj_per_image:.1f} mJ an image"
        lines.append(f"predicted accuracy {found.predicted_accuracy:.2%}; widths {widths}{energy}")
    for line in lines:
        console.print(line, highlight=False)
    for why, count in found.refusals.items():
        console.print(f"  {count} × {why}", highlight=False, markup=False)
    if found.dispatch_error.p99_s > PUNCTUAL_S:
        console.print(
            "[yellow]requests left late: this machine could not send at that rate, so part of the latency is "
            "the generator's own[/yellow]"
        )


def _spread(one: "Latency") -> str:
    values = {"p50": one.p50_s, "p90": one.p90_s, "p99": one.p99_s, "p99.9": one.p999_s, "max": one.max_s}
    return ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in values.items())
