"""Small clusters and values that many tests use. SlimResNet has widths for choices; tests name those."""

from collections.abc import Sequence

from slimsched.models.quality import QualityTable
from slimsched.models.spec import (
    START,
    ModelFigures,
    ModelSpec,
    Path,
    PlanTree,
    Step,
    StepFigures,
    TensorSpec,
    every_plan,
)
from slimsched.models.width import WIDTHS
from slimsched.serving.domain.cluster import Cluster, Link
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Device, Profile, modelled_profile
from slimsched.serving.domain.request import NO_PLAN, Block, Key, Request, block_of, key_of, onward
from slimsched.serving.scenario.files import shipped_model, with_accuracy

MEGABYTE = 1_000_000

MODEL = with_accuracy(shipped_model(), "paper")
"""The shipped SlimResNet with the paper's accuracies."""


def choice(width: float) -> int:
    """The choice that runs at this width."""
    return WIDTHS.index(width)


def path(*widths: float) -> Path:
    """The path that these widths make."""
    return tuple(map(choice, widths))


def key(segment: int, width: float, previous: float | None = None) -> Key:
    """A key of SlimResNet by its widths."""
    return key_of(0, segment, choice(width), START if previous is None else choice(previous))


def widths(one: Key) -> tuple[float, ...]:
    """The widths at which a key runs its segments."""
    return widths_of(one.choices)


def widths_of(plan: Path) -> tuple[float, ...]:
    """The widths at which a plan of SlimResNet runs its segments."""
    return tuple(WIDTHS[position] for position in plan)


def toy_model(
    name: str = "toy",
    *,
    segments: Sequence[Sequence[str]] = (("small", "large"), ("small", "large")),
    plans: Sequence[Path] | None = None,
    follows_previous: bool = False,
    nested: bool = False,
    accuracies: Sequence[float] | None = None,
    macs: int = 20_000_000,
    weight: float = 1.0,
    number: int = 0,
) -> ServedModel:
    """A model with made-up figures: each choice takes twice the arithmetic of the one before it.

    Unless `accuracies` gives them by plan, a plan's accuracy rises with its arithmetic, from 0.6 to 0.9.
    """
    named = tuple(tuple(choices) for choices in segments)
    spec = ModelSpec(
        name=name,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(256,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(10,)),),
        segments=named,
        plans=tuple(plans) if plans is not None else every_plan(named),
        follows_previous=follows_previous,
        nested=nested,
    )
    figures = _toy_figures(spec, macs)
    tree = PlanTree(spec.plans)
    values = _toy_accuracies(spec, figures) if accuracies is None else accuracies
    points = dict(zip(spec.plans, values, strict=True))
    quality = QualityTable.from_points(tree, name="made for a test", points=points)
    return ServedModel(spec, quality, figures, number=number, weight=weight)


def _toy_figures(spec: ModelSpec, macs: int) -> ModelFigures:
    def step(one: Step) -> StepFigures:
        _, chosen, previous = one
        wider_input = 1.0 + 0.25 * max(0, previous)
        return StepFigures(int(macs * 2**chosen * wider_input), 10_000 * 2**chosen)

    places = spec.places()
    return ModelFigures(
        steps={one: step(one) for one in spec.steps()},
        weights={place: 100_000 * 2 ** place[1] for place in places},
        output={place: 1000 * 2 ** place[1] for place in places},
        workspace={place: 2000 * 2 ** place[1] for place in places},
    )


def _toy_accuracies(spec: ModelSpec, figures: ModelFigures) -> list[float]:
    costs = [
        sum(figures.steps[spec.step(plan[:length])].macs for length in range(1, len(plan) + 1))
        for plan in spec.plans
    ]
    return [0.6 + 0.3 * (cost / max(costs)) ** 0.5 for cost in costs]


def flat_profile(
    *,
    latency_s: float = 0.01,
    instance_bytes: int = MEGABYTE,
    name: str = "flat",
    models: Sequence[ServedModel] = (MODEL,),
) -> Profile:
    """Every batch takes the same time, every instance the same memory."""
    parts = []
    for number, model in enumerate(models):
        numbered = model.numbered(number)
        keys = numbered.keys.values()
        places = [(number, *place) for place in model.spec.places()]
        parts.append(
            Profile(
                name=name,
                source="made for a test",
                batches=(1, 16),
                concurrency=(1, 2),
                latency_table_s={one: [[latency_s, latency_s], [latency_s, latency_s]] for one in keys},
                energy_table_j={one: [1.0, 1.0] for one in keys},
                instance_bytes=dict.fromkeys(places, instance_bytes),
                load_s=dict.fromkeys(places, 0.001),
                idle_w=10.0,
                element_bytes=2,
            )
        )
    return Profile.joined(parts)


def device(name: str, tflops: float) -> Device:
    return Device(
        name=name,
        source="made for a test",
        peak_flop_per_s=tflops * 1e12,
        memory_bytes_per_s=400e9,
        memory_bytes=8 * 2**30,
        idle_w=20.0,
        peak_w=200.0,
        launch_s=0.0005,
    )


def small_cluster(
    speeds: Sequence[float] = (10.0, 10.0, 3.0),
    batch_limit: int = 8,
    *,
    models: Sequence[ServedModel] = (MODEL,),
) -> Cluster:
    """Servers of these speeds, in teraflops, on a fast network."""
    numbered = [model.numbered(number) for number, model in enumerate(models)]
    profiles = {
        speed: Profile.joined(
            [modelled_profile(device(f"gpu-{speed:g}", speed), model) for model in numbered]
        )
        for speed in speeds
    }
    link = Link(bandwidth_bytes_per_s=500e6, latency_s=0.0005)
    return Cluster(
        names=[f"server-{number}" for number in range(len(speeds))],
        profiles=[profiles[speed] for speed in speeds],
        models=numbered,
        links=[link] * len(speeds),
        gateway_link=link,
        batch_limit=batch_limit,
    )


def requests(
    count: int, *, first: int = 0, widths: tuple[float, ...] = (), width: float | None = None, **asked: float
) -> tuple[Request, ...]:
    """Requests with ids from `first` on that have passed these widths; `width` is the one they state."""
    plan = NO_PLAN if width is None else MODEL.tree.index[path(width, width, width, width)]
    values = {"plan": plan, "path": path(*widths), **asked}
    return tuple(
        Request(id=first + number, arrival_s=0.0, **values)  # type: ignore[arg-type]
        for number in range(count)
    )


def block(
    number: int,
    count: int,
    *,
    segment: int = 0,
    width: float = 0.5,
    previous: float | None = None,
    ahead: tuple[float, ...] = (),
    **asked: float,
) -> Block:
    """A block of `count` requests whose ids begin at 100 × its number."""
    passed = () if previous is None else (previous,) * segment
    members = requests(count, first=100 * number, widths=passed, **asked)
    return block_of(number, onward(key(segment, width, previous), path(*ahead)), members)
