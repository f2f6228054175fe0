"""Strategies that draw models of all shapes: segments, names of choices, plans of which some end early."""

from hypothesis import strategies as st

from slimsched.models.spec import ModelSpec, Path, TensorSpec

NAMES = ("0.25", "0.5", "1.0", "small", "base", "large", "exit", "on")

TENSOR = TensorSpec(name="x", datatype="FP32", shape=(4,))


def spec_of(segments: tuple[tuple[str, ...], ...], plans: tuple[Path, ...], **other: object) -> ModelSpec:
    """A model whose tensors do not matter."""
    values: dict[str, object] = {"name": "drawn", "inputs": (TENSOR,), "outputs": (TENSOR,), **other}
    return ModelSpec(segments=segments, plans=plans, **values)  # type: ignore[arg-type]


@st.composite
def model_specs(draw: st.DrawFn) -> ModelSpec:
    """Draw 1 to 4 segments of 1 to 4 choices, then plans; a choice ends all plans that take it, or none."""
    choices = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple)
    segments = tuple(draw(st.lists(choices, min_size=1, max_size=4)))
    last = len(segments) - 1
    ends = [
        draw(st.sets(st.integers(0, len(names) - 1), max_size=len(names) - 1)) if segment < last else set()
        for segment, names in enumerate(segments)
    ]

    def grown(path: Path) -> Path:
        segment = len(path)
        taken = (*path, draw(st.integers(0, len(segments[segment]) - 1)))
        return taken if segment == last or taken[-1] in ends[segment] else grown(taken)

    drawn = [grown(()) for _ in range(draw(st.integers(1, 12)))]
    return spec_of(
        segments,
        tuple(dict.fromkeys(drawn)),
        follows_previous=draw(st.booleans()),
        nested=draw(st.booleans()),
    )
