"""Commands that ask a running server: `slim client` classifies pictures, `slim load` measures under load."""

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, convert
from msgspec.structs import replace
from rich.console import Console

from slimsched.cli.options import AsJson, Seed, picture, with_options
from slimsched.cli.progress import example_bar
from slimsched.cli.serving.scenario import ArrivalsName, Data, test_examples
from slimsched.core.config import (
    AccuracyFloor,
    ConfigError,
    Count,
    Milliseconds,
    PositiveAmount,
    Priority,
    Rate,
    RunSeconds,
)
from slimsched.models.package import read_spec
from slimsched.models.spec import Datatype, ModelSpec, TensorSpec
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.telemetry.verdict import LimitVerdict
from slimsched.serving.workload.load import Load

if TYPE_CHECKING:
    from slimsched.serving.api.client.client import Client
    from slimsched.serving.api.client.load import Latency, LoadReport, Target

# -- Options that say how to reach a running server, and what to ask of it for each request.


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Where a server listens, and how to be let in."""

    url: Annotated[str, typer.Option("--url", envvar="SLIM_URL", help="Address of the server.")] = (
        "http://127.0.0.1:8000"
    )
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="SLIM_TOKEN",
            help="Its bearer token; SLIM_TOKEN hides it from the process list.",
        ),
    ] = ""
    ca_file: Annotated[Path | None, "Certificate to trust for https (PEM)."] = None

    @property
    def ca_path(self) -> str | None:
        """The certificate's path as text."""
        return None if self.ca_file is None else str(self.ca_file)

    def client(self, model: str) -> "Client":
        """Return a client of the server for a model, given by its name or its folder."""
        from slimsched.serving.api.client.client import Client

        name = read_spec(Path(model)).name if model and Path(model).is_dir() else model
        return Client(self.url, token=self.token, model=name, ca_file=self.ca_path)


class TermsOptions(Struct, frozen=True, kw_only=True):
    """What a client asks for with each request."""

    plan: Annotated[
        str | None, "How to run: one choice for every segment (0.5), or one each (0.25,0.5,0.75,1.0)."
    ] = None
    min_accuracy: Annotated[
        AccuracyFloor | None, "Lowest accuracy to expect, as a percentage or a share."
    ] = None
    deadline_ms: Annotated[Milliseconds | None, "Give up on a request after this time."] = None
    priority: Annotated[Priority | None, "Higher goes first."] = None
    max_energy_mj: Annotated[PositiveAmount | None, "Most energy that one example may take."] = None

    def given(self) -> dict[str, Any]:
        """Return what was asked for; what was left out is not in it."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


# -- `slim client`: classify pictures with a running server.


@with_options
def client_command(
    files: Annotated[list[Path], typer.Argument(help="Pictures of any size.", metavar="IMAGE...")],
    server: ServerOptions,
    terms: TermsOptions,
    model: Annotated[str, "The model's name or folder, if the server has several."] = "",
    as_json: AsJson = False,
) -> None:
    """Classify pictures with a running `slim serve`.

    The middle square of each picture is scaled to the model's size and sent.

    Examples:

      slim client photo.jpg

      slim client photo.jpg --plan 0.25 --json

      slim client *.png --min-accuracy 75 --deadline-ms 200
    """
    from slimsched.models.data.image_folder import load_square

    rows: list[dict[str, Any]] = []
    with server.client(model) as client:
        side = _side(client)
        for file in files:
            answer = client.classify(load_square(file, side), **terms.given())
            rows.append(
                {
                    "file": str(file),
                    "class": int(answer.classes[0]),
                    "label": answer.labels[0] if answer.labels else str(int(answer.classes[0])),
                    "confidence": round(float(answer.confidence()[0]), 4),
                    "receipt": answer.receipt,
                }
            )
            if not as_json:
                _print_answer(rows[-1])
    if as_json:
        print(json.dumps(rows, indent=1))


def _side(client: "Client") -> int:
    """The side of the square images that the model takes."""
    tensor = client.metadata()["inputs"][0]
    shape = tensor["shape"]
    if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
        raise ConfigError(
            f"input '{tensor['name']}' has shape {shape}: slim client sends square pictures "
            "[n, 3, side, side]; ask other models with the Python client"
        )
    return int(shape[2])


def _print_answer(row: dict[str, Any]) -> None:
    receipt = row["receipt"]
    spent_ms = receipt["queue_ms"] + receipt["compute_ms"] + receipt["network_ms"]
    Console(soft_wrap=True).print(
        f"{row['file']}: [bold]{row['label']}[/bold] ({row['confidence']:.0%})  "
        f"plan {receipt['choices']} on {receipt['servers']}, {spent_ms:.1f} ms, "
        f"{receipt['energy_mj']:.1f} mJ ({receipt['energy_source']})"
        + (f"; limit missed: {receipt['missed']}" if "missed" in receipt else ""),
        highlight=False,
    )


# -- `slim load`: an open-loop load generator for any Open Inference Protocol v2 server.

PUNCTUAL_S = 0.01
"""A 99th percentile of the dispatch error above this is worth a warning."""


class SendOptions(Struct, frozen=True, kw_only=True):
    """What to send, and when."""

    rate: Annotated[Rate | None, "Mean requests per second; 20, or a trace's own rate, if left out."] = None
    seconds: Annotated[RunSeconds | None, "How long to send; 10, or all of a trace, if left out."] = None
    arrivals: ArrivalsName = "poisson"
    per_request: Annotated[Count, typer.Option("--images", help="Examples per request.")] = 1
    data: Data = None
    connections: Annotated[Count, "Most connections at once."] = 512
    seed: Seed = 0


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Which model to ask, and for which output."""

    model: Annotated[str, "The model's name or folder, if the server has several."] = ""
    output: Annotated[str, "The output to ask for; by default classes, or the first one."] = ""
    datatype: Annotated[str, "Send images as UINT8, or as FP32 in [0, 1]."] = "UINT8"


@with_options
def load_command(
    server: ServerOptions,
    sent: SendOptions,
    terms: TermsOptions,
    model: ModelOptions,
    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw rates and latency into a PNG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send each request when it is due, even if earlier ones are unanswered, and report the answers.

    Latency counts from the time a request was due, so a stall is charged to every request that had to wait.

    Examples:

      slim load --rate 50 --seconds 20

      slim load --arrivals bursty --rate 80 --deadline-ms 250 --plot load.png

      slim load --url http://other:8000 --model resnet --output logits --datatype FP32 --json

      slim load --model my-model --data my-examples.npz
    """
    from slimsched.serving.api.client.load import Target, load_of
    from slimsched.serving.api.client.load import as_json as to_json

    spec = _ask_spec(server, model)
    names = [tensor.name for tensor in spec.outputs]
    output = model.output or ("classes" if "classes" in names else names[0])
    target = Target(token=server.token, model=spec.name, outputs=(output,))
    examples = test_examples(spec, sent.data)
    load = load_of(sent.arrivals, sent.rate, sent.seconds)
    report = _send(server, load, sent, terms, target, spec, examples, plot)
    if as_json:
        print(to_json(report))
        return
    _print_load(Console(soft_wrap=True), report, examples.source, load)
    if plot is not None:
        Console().print(f"written: {plot}")


def _send(
    server: ServerOptions,
    load: Load,
    sent: SendOptions,
    terms: TermsOptions,
    target: "Target",
    spec: ModelSpec,
    examples: ExampleSet,
    plot: Path | None,
) -> "LoadReport":
    from slimsched.serving.api.client.load import LoadGenerator, due_times, plot_load, report
    from slimsched.serving.live.wire import run

    due_s, numbers = due_times(load, sent.seed, len(examples), sent.per_request)
    inputs = {tensor.name: array for tensor, array in zip(spec.inputs, examples.inputs, strict=True)}
    generator = LoadGenerator(
        server.url,
        inputs,
        target.prefix(terms.given()),
        ca_file=server.ca_path,
        connections=sent.connections,
    )
    with example_bar("sending", len(due_s)) as bar:

        def progress(sent: int, answered: int) -> None:
            text = f"{sent} sent, {answered} answered"
            bar.update(bar.task_ids[0], completed=answered, description=text)

        answers = run(generator.run(due_s, numbers, progress))
    deadline_s = NEVER_S if terms.deadline_ms is None else terms.deadline_ms / 1e3
    if plot is not None:
        title = f"{sent.arrivals}, {load.rate_per_s:g} requests/s, {server.url}"
        plot_load(answers, title, plot, deadline_s=deadline_s)
    figures = report(answers, examples.labels, seconds=load.seconds, deadline_s=deadline_s)
    return replace(figures, verdicts=_verdicts(server))


def _verdicts(server: ServerOptions) -> list[LimitVerdict]:
    """Ask the server whether its goal is kept; other servers have none."""
    from slimsched.serving.api.client.client import ServerRefusedError, UnreachableError

    with suppress(ServerRefusedError, UnreachableError), server.client("") as client:
        return convert(client.goal().get("limits", []), list[LimitVerdict])
    return []


def _ask_spec(server: ServerOptions, model: ModelOptions) -> ModelSpec:
    """Ask the server what the model takes and gives; its plans stay unknown here."""
    with server.client(model.model) as client:
        facts = client.metadata()
    as_floats: dict[str, Datatype] = {"UINT8": "FP32"} if model.datatype == "FP32" else {}
    inputs = [
        TensorSpec(
            name=one["name"],
            datatype=as_floats.get(one["datatype"], one["datatype"]),
            shape=tuple(one["shape"][1:]),
        )
        for one in facts["inputs"]
    ]
    outputs = [TensorSpec(name=one["name"], datatype="FP32", shape=(1,)) for one in facts["outputs"]]
    return ModelSpec(
        name=facts["name"], inputs=tuple(inputs), outputs=tuple(outputs), segments=(("all",),), plans=((0,),)
    )


def _print_load(console: Console, report: "LoadReport", kind: str, load: Load) -> None:
    outcomes = ", ".join(f"{name}: {count}" for name, count in sorted(report.outcomes.items()))
    lines = [
        load.description,
        f"[bold]{report.requests} requests, {report.examples} examples[/bold] ({kind}) in "
        f"{report.seconds:g} s: {report.offered_per_s:.1f} examples/s offered, "
        f"{report.answered_per_s:.1f} answered, {report.goodput_per_s:.1f} in time "
        f"({report.in_time_share:.1%})",
        f"of {report.examples} offered: "
        + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.ended.items()),
        f"outcomes by HTTP status: {outcomes}",
        f"latency from due time:   {_spread(report.latency)}",
        f"latency from send:       {_spread(report.latency_from_send)}",
        f"dispatch error:          {_spread(report.dispatch_error)}",
    ]
    if report.accuracy is not None:
        lines.append(
            f"accuracy on labels: {report.accuracy:.2%}; correct and in time: "
            f"{report.correct_in_time_per_s:.1f} examples/s"
        )
    if report.predicted_accuracy is not None:
        choices = ", ".join(f"{name}: {share:.0%}" for name, share in report.choices.items())
        energy = (
            ""
            if report.energy_mj_per_example is None
            else f"; {report.energy_mj_per_example:.1f} mJ per example"
        )
        lines.append(f"predicted accuracy {report.predicted_accuracy:.2%}; choices {choices}{energy}")
    lines += [f"the server's goal: {one.limit} {one.word}: {one.says}" for one in report.verdicts]
    for line in lines:
        console.print(line, highlight=False, markup=line.startswith("[bold]"))
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
