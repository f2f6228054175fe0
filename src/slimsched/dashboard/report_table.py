"""The tables of a report: the figures with their headings and units."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

Row = Mapping[str, Any]
Column = tuple[str, str, Callable[[float], str]]
"""The heading, the key of the figure, and the function that writes it."""


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _millis(value: float) -> str:
    return f"{1e3 * value:,.0f} ms"


def _hours(value: float) -> str:
    return f"{value / 3600:,.2f} h"


def _count(value: float) -> str:
    return f"{value:,.0f}"


REQUEST_COLUMNS: Sequence[Column] = (
    ("accuracy", "accuracy", _percent),
    ("of bound", "bound_share", _percent),
    ("of sure bound", "sure_bound_share", lambda value: _percent(value) if value else "–"),
    ("mean", "latency_mean_s", _millis),
    ("p50", "latency_p50_s", _millis),
    ("p99", "latency_p99_s", _millis),
    ("in time", "slo_attainment", _percent),
    ("goodput /s", "goodput_per_s", _count),
    ("J/request", "energy_j_per_request", lambda value: f"{value:.4f}"),
    ("arrived", "arrived", _count),
    ("answered", "completed", _count),
    ("dropped", "dropped", _count),
    ("lost", "lost", _count),
)
MODEL_COLUMNS: Sequence[Column] = (
    ("answered", "completed", _count),
    ("accuracy", "accuracy", _percent),
    ("predicted", "accuracy_prior", _percent),
    ("mean", "latency_mean_s", _millis),
    ("p99", "latency_p99_s", _millis),
)
JOB_COLUMNS: Sequence[Column] = (
    ("mean JCT", "jct_mean_s", _hours),
    ("p50", "jct_p50_s", _hours),
    ("p99", "jct_p99_s", _hours),
    ("makespan", "makespan_s", _hours),
    ("mean wait", "wait_mean_s", _hours),
    ("comm/compute", "comm_overhead", lambda value: f"{value:.3f}"),
    ("avoidable", "excess_comm", lambda value: f"{value:.3f}"),
    ("stops", "preemptions", _count),
    ("GPUs held", "utilization", _percent),
    ("goodput", "goodput", _percent),
    ("jobs", "jobs", _count),
    ("told durations", "told_durations", lambda value: "yes" if value else "no"),
)


def table(rows: Sequence[Row], first: str, columns: Sequence[Column], label: str = "Figures") -> str:
    """Return an HTML table with one row per row of figures, and 95 % intervals where they are known."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title, _, _ in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(str(row[first]))}</th>'
        + "".join(
            f'<td data-head="{escape(title)}">{_cell(row, key, write)}</td>' for title, key, write in columns
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>'
        f'<th scope="col">{escape(first)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def model_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each model under each router; none where there is one model."""
    several = len(rows) > 1
    return [
        {"model": f"{name}, {row['router']}" if several else name, **figures}
        for name in (rows[0].get("models") or {})
        for row in rows
        for figures in [row["models"][name]]
    ]


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return an HTML table of plain texts."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(
            f'<td data-head="{escape(title)}">{escape(text)}</td>'
            for title, text in zip(heads[1:], rest, strict=True)
        )
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table class="words">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(row: Row, key: str, write: Callable[[float], str]) -> str:
    value = row.get(key)
    if value is None:
        return "–"
    half_interval = (row.get("ci95") or {}).get(key)
    interval = f' <span class="interval">± {escape(write(half_interval))}</span>' if half_interval else ""
    return escape(write(value)) + interval
