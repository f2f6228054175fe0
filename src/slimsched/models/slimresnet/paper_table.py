"""The eight width tuples of the paper's Tables I and II, and what the paper reports for them."""

from slimsched.models.width import SEGMENTS, WIDTHS

UNIFORM: tuple[tuple[float, ...], ...] = tuple((width,) * SEGMENTS for width in WIDTHS)
MIXED: tuple[tuple[float, ...], ...] = (
    (1.0, 0.75, 0.5, 0.25),
    (0.75, 1.0, 0.25, 0.5),
    (0.5, 0.25, 1.0, 0.75),
    (0.25, 0.5, 0.75, 1.0),
)
PAPER_PERCENT: dict[tuple[float, ...], float] = dict(
    zip((*UNIFORM, *MIXED), (70.30, 72.99, 74.93, 76.43, 71.35, 72.33, 74.53, 75.33), strict=True)
)
