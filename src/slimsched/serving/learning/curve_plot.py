"""The curve of a training run as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from slimsched.kernel.errors import SlimError


def plot_curve(series: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """One panel a series, over updates."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise SlimError(
            "drawing needs matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    figure, panels = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), layout="constrained")
    figure.suptitle(title)
    for panel, (name, values) in zip(panels, series.items(), strict=True):
        panel.plot(range(1, len(values) + 1), values, linewidth=1)
        panel.set(xlabel="update", title=name)
    figure.savefig(path, dpi=110)
    plt.close(figure)
