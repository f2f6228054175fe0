"""How high a network that learned nothing can score."""

import math

import numpy as np
from numpy.typing import NDArray

DEVIATIONS = 3.0


def chance_percent(labels: NDArray[np.int64]) -> float:
    """Highest accuracy in percent that guessing the most common class is likely to reach.

    p + 3 sqrt(p (1 - p) / n), with p the share of the most common class among n images.
    """
    share = float(np.bincount(labels).max()) / len(labels)
    return 100 * min(1.0, share + DEVIATIONS * math.sqrt(share * (1 - share) / len(labels)))


def chance_warning(percent_by_width: dict[float, float], labels: NDArray[np.int64]) -> str | None:
    """A warning that names the widths at chance level, or None where every width has learned."""
    limit = chance_percent(labels)
    if len(np.unique(labels)) < 2:
        return None
    lost = [width for width, percent in percent_by_width.items() if percent <= limit]
    if not lost:
        return None
    names = ", ".join(f"{width:g} ({percent_by_width[width]:.1f} %)" for width in lost)
    return (
        f"WARNING: no better than guessing at width {names}: guessing can reach {limit:.1f} % here. "
        "Do not use this model; train longer (epochs, least_steps), add pictures, or check the labels"
    )
