"""The report of a run: one self-contained HTML file, and its pictures as PNG."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from slimsched.dashboard.page import asset, replay_page
from slimsched.dashboard.pictures import FAULTS, Picture, job_pictures, request_pictures
from slimsched.serving.telemetry.run_folder import Run

# -- The tables of a report: the figures with their headings and units.

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
    ("offered", "arrived", _count),
    ("answered", "completed", _count),
    ("late", "late", _count),
    ("refused", "refused", _count),
    ("failed", "failed", _count),
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


def table(rows: Sequence[Row], first: str, columns: Sequence[Column], label: str) -> str:
    """Return an HTML table with one row per row of figures, and 95 % intervals where they are known."""
    cells = [(str(row[first]), *(_cell(row, key, write) for _, key, write in columns)) for row in rows]
    return _table((first, *(title for title, _, _ in columns)), cells, label)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return an HTML table of plain texts."""
    return _table(heads, [(first, *map(escape, rest)) for first, *rest in rows], label, ' class="words"')


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str, kind: str = "") -> str:
    """Return an HTML table; the first cell of each row is text, the others are HTML."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(
            f'<td data-head="{escape(title)}">{cell}</td>'
            for title, cell in zip(heads[1:], rest, strict=True)
        )
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table{kind}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
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


def _cell(row: Row, key: str, write: Callable[[float], str]) -> str:
    value = row.get(key, (row.get("ended") or {}).get(key))
    if value is None:
        return "–"
    half_interval = (row.get("ci95") or {}).get(key)
    interval = f' <span class="interval">± {escape(write(half_interval))}</span>' if half_interval else ""
    return escape(write(value)) + interval


def write_report(run: Run, path: Path) -> list[Path]:
    """Write the page to `path` and the pictures beside it; return the paths of all files."""
    pictures = job_pictures(run) if run.about.kind == "jobs" else request_pictures(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(run, pictures), encoding="utf-8")
    written = [path]
    for picture in pictures:
        written.append(path.with_name(f"{path.stem}-{picture.name}.png"))
        written[-1].write_bytes(picture.png)
    return written


def page(run: Run, pictures: list[Picture]) -> str:
    """Return the report as HTML."""
    about = run.about
    jobs = about.kind == "jobs"
    figures = table(
        run.rows, "policy" if jobs else "router", JOB_COLUMNS if jobs else REQUEST_COLUMNS, "Figures"
    )
    seeds = f"seed {about.seed}" + (
        f" and {about.seeds - 1} more, ± is the 95 % interval" * (about.seeds > 1)
    )
    made_by = f"Slim Scheduler {about.slim}, {seeds}{_sources(run)}"
    config = escape(msgspec.json.format(msgspec.json.encode(about.config), indent=2).decode())
    return html_page(
        about.title,
        made_by,
        [
            _goal(run),
            section("figures", "Figures", figures + JOB_NOTES * jobs),
            _models(run),
            *map(figure, pictures),
            _faults(run),
            _replay(run),
            section(
                "config",
                "Configuration",
                f"<p>Seed {about.seed}. The same configuration and seed give the same run.</p>"
                f"<details open><summary>All settings</summary><pre>{config}</pre></details>",
            ),
        ],
    )


JOB_NOTES = (
    '<p class="quiet">comm/compute: communication that computing does not hide, over computing, in '
    "GPU-seconds. avoidable: the part of it that the closest placements would not have had. told "
    "durations: the policy knows how long jobs take, which a real cluster cannot tell it.</p>"
)
"""Explains the columns of a run that placed jobs."""


def html_page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """Return an HTML page that needs nothing from outside."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{asset('report.css')}</style></head><body>",
            f"<header><h1>{escape(title)}</h1>",
            f'<p class="quiet">{escape(subtitle)}</p></header><main>',
            *sections,
            "</main></body></html>\n",
        ]
    )


def section(name: str, title: str, body: str) -> str:
    """Return a part of a page under a heading; `body` is HTML."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{body}</section>'


def figure(picture: Picture) -> str:
    """Return a picture with its title and caption, as HTML."""
    svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.caption)}" ', 1)
    return (
        f'<figure id="{picture.name}"><h2>{escape(picture.title)}</h2>'
        f'<div class="scroll" tabindex="0">{svg}</div>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _sources(run: Run) -> str:
    """Say whether energy was measured or modelled."""
    sources = {str(row["energy_source"]) for row in run.rows if row.get("energy_source")}
    return f", energy {'; '.join(sorted(sources))}" if sources else ""


def _goal(run: Run) -> str:
    """Return whether each row kept its goal."""
    heads = ("router", "limit", "verdict", "over the run")
    rows = [
        (str(row["router"]), one["limit"], one["word"], one["says"])
        for row in run.rows
        for one in row.get("verdicts") or ()
    ]
    return section("goal", "Was the goal kept?", text_table(heads, rows, "Goal")) if rows else ""


def _models(run: Run) -> str:
    """Return what was served, and the figures of each model where there are several."""
    if not run.about.models:
        return ""
    rows = [
        (
            model.name,
            str(len(model.segments)),
            # the choices once where all segments have the same, else segment by segment
            "; ".join(", ".join(names) for names in dict.fromkeys(model.segments)),
            f"{len(model.plans):,}",
        )
        for model in run.about.models
    ]
    served = text_table(("model", "segments", "choices, narrow to wide", "plans"), rows, "Models")
    figures = model_rows(run.rows)
    by_model = table(figures, "model", MODEL_COLUMNS, "Figures by model") if figures else ""
    return section("models", "Models" if len(rows) > 1 else "Model", served + by_model)


def _faults(run: Run) -> str:
    if not run.about.faults:
        return ""
    lines = "".join(
        f"<li>{fault.at_s:g} s: {escape(fault.server)} {FAULTS[fault.kind]}"
        + (f", {fault.slowdown:g} times as slow" if fault.kind.startswith("slow") else "")
        + "</li>"
        for fault in run.about.faults
    )
    return section("faults", "Faults", f"<ul>{lines}</ul>")


def _replay(run: Run) -> str:
    """Return the dashboard with this run in it."""
    if not run.frames:
        return ""
    inner = escape(replay_page(run.frames))
    return section(
        "replay",
        "Replay",
        "<details><summary>Scrub through the run on the dashboard</summary>"
        f'<iframe title="Replay of the run" loading="lazy" srcdoc="{inner}"></iframe></details>',
    )
