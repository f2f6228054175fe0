"""What all plots start from: Matplotlib's pyplot without a screen, and the colours of rows."""

from typing import Any

from slimsched.core.config import SlimError

COLOURS = ("#4c78c8", "#e07b39", "#3f9c6b", "#cf4b52", "#8c6bc0", "#9a7350", "#d678b4", "#7f8c8d", "#b8a02e")
"""The colours of rows, such as routers, in their order."""


def pyplot() -> Any:
    """Return Matplotlib's pyplot, set up to draw without a screen."""
    try:
        import matplotlib
    except ImportError:
        raise SlimError(
            "plots need matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
