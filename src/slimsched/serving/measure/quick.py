"""Measures models on a device in a few seconds, for a gateway that has no profile of them (`missing.py`).

    python -m slimsched.serving.measure.quick        reads a request, writes a line of progress per cell

Few plans are measured: of a nested model the widest, the narrowest and a middle one, of another one plan for
each choice. The rest of the profile follows from arithmetic and batch size. Figures that the model folder
lacks are counted, and on a GPU the precision is chosen, with `tune.py`.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec
import torch
from msgspec.structs import replace

from slimsched.core.config import DataError, SlimError
from slimsched.models.cache import cache_folder, write_kept
from slimsched.models.check import ROWS, count_figures
from slimsched.models.elastic import AS_IS, PRECISIONS, ElasticModel, PlanRun, RunOptions, example_inputs
from slimsched.models.loading import load_model, trained_model
from slimsched.models.package import FIGURES, PROFILES, figures_json
from slimsched.models.shipped import find_folder
from slimsched.models.spec import DEFAULT_MODEL
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import ACTIVE_W, AT_START
from slimsched.serving.live.executor import HostedModel
from slimsched.serving.live.server import keep_to_cores, own_options
from slimsched.serving.live.wire import CANNOT_START
from slimsched.serving.measure.missing import QuickProgress, QuickRequest, profile_name
from slimsched.serving.measure.profile import MeasuringPlan, Profiler, device_facts, open_profiler
from slimsched.serving.measure.tune import tune
from slimsched.serving.options import Asked
from slimsched.serving.scenario.files import read_model, unrated

SIZES = {"cpu": (1, 64, 8, 32, 16, 4, 2), "cuda": (1, 256, 64, 8, 32)}
"""Batch sizes, the most useful first."""

CONCURRENCY = {"cpu": (1,), "cuda": (1, 2)}

PATIENCE_S = 1.0
"""Figures are counted with one row only where that takes longer."""

LONGEST_S = 0.5
"""Batches that take longer than this are not measured."""

COMPARED, TIMED = 256, 128
"""Examples whose answers are compared to choose a precision, and the batch size at which it is timed."""

Tell = Callable[[int, int, str], None]


def measure(request: QuickRequest, tell: Tell) -> None:
    """Measure every model that is asked for, and keep what was found in the cache."""
    tell(0, 0, "loading")
    host, models = request.host, [read_or_count(source) for source in request.models]
    device = torch.device("cpu")
    if host.kind == "cpu":
        torch.set_num_threads(host.threads)
    else:
        from slimsched.serving.live.cuda import cuda_device

        device = cuda_device()
    precision, options = choose_precision([model for model, _ in models], device, request.precision, tell)
    name, left_s, left = profile_name(request.device, precision), request.budget_s, len(models)
    for source, (model, elastic), one in zip(request.models, models, options, strict=True):
        began_s, share_s, part = perf_counter(), left_s / left, measured_part(model)
        hosted = HostedModel(model if host.kind == "cpu" else part, elastic, device, one)  # a GPU tries all
        profiler = _measured(hosted, part, host, share_s, name, tell)
        left, left_s = left - 1, left_s - min(share_s, perf_counter() - began_s)
        kind, facts = device_facts(host)
        facts |= {
            "asked": request.precision,
            "precision": one.precision,
            "channels_last": "yes" if one.channels_last else "no",
        }
        record = profiler.record(name, f"{AT_START}: {kind}", facts, model)
        write_kept(cache_folder(source) / PROFILES / f"{name}.json", msgspec.json.encode(record))


def read_or_count(source: str) -> tuple[ServedModel, ElasticModel]:
    """Load a model; if nobody knows its figures, count them and keep them in the cache."""
    elastic = trained_model() if source == DEFAULT_MODEL else load_model(find_folder(source))
    try:
        return read_model(source, rated=False), elastic
    except DataError:
        figures = count_figures(PlanRun(elastic), example_inputs(elastic, ROWS), patience_s=PATIENCE_S)
        write_kept(cache_folder(source) / FIGURES, figures_json(elastic.spec, figures))
        return read_model(source, rated=False), elastic


def measured_part(model: ServedModel) -> ServedModel:
    """Return the model with the plans that are measured, the most useful first."""
    tree, widest = model.tree, model.spec.widest
    plans = [widest, model.spec.narrowest, tree.middle]
    if not model.spec.nested:
        plans = [widest, *(tree.stay((int(choice),)) for choice in reversed(tree.choices[0]))]
        plans += reversed(model.spec.plans)  # for choices that none of these takes
    chosen: list[tuple[int, ...]] = []
    places: set[tuple[int, int]] = set()
    for plan in plans:
        if not places.issuperset(enumerate(plan)):
            chosen.append(plan)
            places.update(enumerate(plan))
    spec = replace(model.spec, plans=tuple(chosen))
    return ServedModel(spec, unrated(spec), model.figures, folder=model.folder)


def choose_precision(
    models: Sequence[ServedModel], device: torch.device, asked: Asked, tell: Tell
) -> tuple[str, list[RunOptions]]:
    """Return the precision of the device, and how each model runs there.

    On a GPU, unless asked otherwise, it is the first of bf16 and fp16 at which all models keep their answers
    and are faster. Models with run options of their own keep them.
    """
    own = [own_options(model, device.type) for model in models]
    known = [one or AS_IS for one in own]
    if asked == "auto" and (device.type == "cpu" or None not in own):
        return "", known
    for precision in ("bf16", "fp16") if asked == "auto" else (asked,):
        wanted = RunOptions(precision=PRECISIONS[precision])
        if wanted == AS_IS or device.type == "cpu":
            return precision, [one or wanted for one in own]
        ways, best = (AS_IS, replace(wanted, channels_last=True), wanted), list[RunOptions]()
        for model, options in zip(models, own, strict=True):
            if options is None:
                tell(0, 0, f"trying {precision} for {model.name}")
                tried, chosen = tune(model, device, ways, [model.spec.widest], batch=TIMED, examples=COMPARED)
                fastest = max(tried[1:], key=lambda one: one.speed(tried[0]))
                options = (chosen if asked == "auto" else fastest).options
            best.append(options)
        if asked != "auto" or all(one != AS_IS for one, mine in zip(best, own, strict=True) if mine is None):
            return precision, best
    return "fp32", known


def _measured(
    hosted: HostedModel, part: ServedModel, host: Host, seconds: float, name: str, tell: Tell
) -> Profiler:
    """Measure part of a model; where its largest batches do not fit into the GPU's memory, smaller ones."""
    sizes = SIZES[host.kind]
    while True:
        plan = MeasuringPlan(
            batches=sizes,
            concurrency=CONCURRENCY[host.kind],
            seconds=seconds,
            repeats=15,
            warm=1,
            cell_s=0.02,
            longest_s=LONGEST_S,
            window_s=0.1,
            active_w=ACTIVE_W,
        )
        try:
            profiler = open_profiler(hosted, part, host, plan)
            profiler.measure(lambda done, of, _: tell(done, of, f"measuring {part.name} on {name}"))
            return profiler
        except torch.cuda.OutOfMemoryError:
            if len(sizes) == 1:
                raise SlimError(f"model '{part.name}' does not fit into the memory of {host}") from None
            sizes = tuple(size for size in sizes if size != max(sizes))


def main() -> None:
    """Measure what standard input asks for; standard output is for progress alone, whatever models print."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=QuickRequest)
    said = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(done: int, of: int, text: str, error: str = "") -> None:
        said.write(msgspec.json.encode(QuickProgress(done=done, of=of, text=text, error=error)) + b"\n")

    keep_to_cores(request.host)
    try:
        measure(request, tell)
    except BaseException as error:  # a model's code may raise anything, and even exit
        text = f"{type(error).__name__}: {error}"[:300]
        text = f"measuring {', '.join(request.models)} on {request.device}: {text}; see slim model check DIR"
        tell(0, 0, "", " ".join((str(error) if isinstance(error, SlimError) else text).split()))
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    main()
