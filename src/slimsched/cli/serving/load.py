"""`slim load`: an open-loop load generator for any Open Inference Protocol v2 server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from msgspec import Struct
from numpy.typing import NDArray
from rich.console import Console

from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.progress import request_bar
from slimsched.cli.serving.images import test_images
from slimsched.cli.serving.terms import ServerOptions, TermsOptions
from slimsched.kernel.errors import ConfigError
from slimsched.serving.domain.request import NEVER_S

if TYPE_CHECKING:
    from slimsched.serving.api.load_generator import LoadGenerator
    from slimsched.serving.api.load_report import Latency, LoadReport

PUNCTUAL_S = 0.01
"""A 99th percentile of the dispatch error above this is worth a warning."""


class SendOptions(Struct, frozen=True, kw_only=True):
    """What to send, and when."""

    rate: Annotated[float, typer.Option("--rate", help="Mean requests per second.")] = 20.0
    seconds: Annotated[float, typer.Option("--seconds", help="How long to send.")] = 10.0
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            help="poisson, bursty, fitted (to a real trace), diurnal, step, or the path of a trace file.",
        ),
    ] = "poisson"
    per_request: Annotated[int, typer.Option("--images", help="Images per request.")] = 1
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder with CIFAR-100, to count accuracy; SLIM_DATA if left out."),
    ] = None
    connections: Annotated[int, typer.Option("--connections", help="Most connections at once.")] = 512
    seed: Seed = 0

    def check(self) -> None:
        """Refuse counts below 1."""
        if self.per_request < 1 or self.connections < 1:
            raise ConfigError(
                f"--images {self.per_request}, --connections {self.connections}: both must be at least 1"
            )


class ModelOptions(Struct, frozen=True, kw_only=True):
    """What the server calls the model, its input and its output."""

    model: Annotated[str, typer.Option("--model", help="The model's name.")] = "slimresnet"
    tensor: Annotated[str, typer.Option("--input", help="The name of its input.")] = "images"
    output: Annotated[str, typer.Option("--output", help="Its output with classes or scores.")] = "classes"
    datatype: Annotated[str, typer.Option("--datatype", help="UINT8, or FP32 in [0, 1].")] = "UINT8"


@with_options
def command(
    server: ServerOptions,
    sent: SendOptions,
    terms: TermsOptions,
    model: ModelOptions,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw rates and latency into a PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send each request when it is due, whether or not earlier ones were answered, and report the answers.

    Latency counts from the time a request was due, so a stall is charged to every request that had to wait.

    Examples:

      slim load --rate 50 --seconds 20

      slim load --arrivals bursty --rate 80 --deadline-ms 250 --plot load.png

      slim load --url http://other:8000 --model resnet --output logits --datatype FP32 --json
    """
    from slimsched.serving.api.load_report import as_json as to_json

    sent.check()
    images, labels, kind = test_images(sent.data)
    report = _send(server, sent, terms, model, images, labels, plot)
    if as_json:
        print(to_json(report))
        return
    _print(Console(soft_wrap=True), report, kind)
    if plot is not None:
        Console().print(f"written: {plot}")


def _send(
    server: ServerOptions,
    sent: SendOptions,
    terms: TermsOptions,
    model: ModelOptions,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    plot: Path | None,
) -> "LoadReport":
    from slimsched.serving.api.load_generator import due_times
    from slimsched.serving.api.load_report import report
    from slimsched.serving.execution.live.event_loop import run

    due_s, numbers = due_times(
        sent.arrivals, sent.rate, sent.seconds, sent.seed, len(images), sent.per_request
    )
    generator = _generator(server, sent, terms, model, images)
    with request_bar("sending", len(due_s)) as bar:

        def progress(sent: int, answered: int) -> None:
            text = f"{sent} sent, {answered} answered"
            bar.update(bar.task_ids[0], completed=answered, description=text)

        answers = run(generator.run(due_s, numbers, progress))
    deadline_s = NEVER_S if terms.deadline_ms is None else terms.deadline_ms / 1e3
    if plot is not None:
        from slimsched.serving.api.load_report import plot_load

        title = f"{sent.arrivals}, {sent.rate:g} requests/s, {server.url}"
        plot_load(answers, title, plot, deadline_s=deadline_s)
    return report(answers, labels, seconds=sent.seconds, deadline_s=deadline_s)


def _generator(
    server: ServerOptions,
    sent: SendOptions,
    terms: TermsOptions,
    model: ModelOptions,
    images: NDArray[np.uint8],
) -> "LoadGenerator":
    from slimsched.serving.api.load_generator import LoadGenerator, Target

    target = Target(
        token=server.token,
        model=model.model,
        input=model.tensor,
        output=model.output,
        datatype=model.datatype,
    )
    return LoadGenerator(
        server.url,
        target.pixels(images),
        target.prefix(terms.given()),
        ca_file=server.ca_path,
        connections=sent.connections,
    )


def _print(console: Console, report: "LoadReport", kind: str) -> None:
    outcomes = ", ".join(f"{name}: {count}" for name, count in sorted(report.outcomes.items()))
    lines = [
        f"[bold]{report.requests} requests, {report.images} images[/bold] ({kind}) in {report.seconds:g} s: "
        f"{report.offered_per_s:.1f} images/s offered, {report.answered_per_s:.1f} answered, "
        f"{report.goodput_per_s:.1f} in time ({report.in_time_share:.1%})",
        f"outcomes by HTTP status: {outcomes}",
        f"latency from due time:   {_spread(report.latency)}",
        f"latency from send:       {_spread(report.latency_from_send)}",
        f"dispatch error:          {_spread(report.dispatch_error)}",
    ]
    if report.accuracy is not None:
        lines.append(
            f"accuracy on labels: {report.accuracy:.2%}; correct and in time: "
            f"{report.correct_in_time_per_s:.1f} images/s"
        )
    if report.predicted_accuracy is not None:
        widths = ", ".join(f"{width}: {share:.0%}" for width, share in report.widths.items())
        energy = (
            "" if report.energy_mj_per_image is None else f"; {report.energy_mj_per_image:.1f} mJ per image"
        )
        lines.append(f"predicted accuracy {report.predicted_accuracy:.2%}; widths {widths}{energy}")
    for line in lines:
        console.print(line, highlight=False)
    for why, count in report.refusals.items():
        console.print(f"  {count} × {why}", highlight=False, markup=False)
    if report.dispatch_error.p99_s > PUNCTUAL_S:
        console.print(
            "[yellow]requests left late: this machine could not send at that rate, so part of the latency is "
            "the generator's own[/yellow]"
        )


def _spread(one: "Latency") -> str:
    values = {"p50": one.p50_s, "p90": one.p90_s, "p99": one.p99_s, "p99.9": one.p999_s, "max": one.max_s}
    return ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in values.items())
