"""Marks of faults in the pictures of a run."""

from typing import Any

from slimsched.serving.telemetry.run_folder import About


def mark_faults(axis: Any, about: About, *, words: bool = True) -> None:
    """Draw a line at each fault, and say what happened if `words` is set."""
    verbs = {
        "kill": "killed",
        "hang": "hangs",
        "restore": "restored",
        "slow": "slowed",
        "slow-link": "link slowed",
        "leave": "leaves",
    }
    for fault in about.faults:
        axis.axvline(fault.at_s, color="#d62728", linestyle="--", linewidth=1, zorder=4)
        if words:
            axis.text(
                fault.at_s,
                0.98,
                f"{fault.server} {verbs[fault.kind]}",
                transform=axis.get_xaxis_transform(),
                rotation=90,
                va="top",
                ha="right",
                fontsize=7,
                color="#b3161b",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1},
            )
