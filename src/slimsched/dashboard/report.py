"""The report of a run: one self-contained HTML file, and its pictures as PNG."""

from html import escape
from pathlib import Path

import msgspec

from slimsched.dashboard.job_pictures import job_pictures
from slimsched.dashboard.page import asset, replay_page
from slimsched.dashboard.picture import Picture
from slimsched.dashboard.report_table import (
    JOB_COLUMNS,
    MODEL_COLUMNS,
    REQUEST_COLUMNS,
    model_rows,
    table,
    text_table,
)
from slimsched.dashboard.request_pictures import request_pictures
from slimsched.serving.domain.model import ModelOutline
from slimsched.serving.telemetry.run_folder import Run


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
    figures = table(run.rows, "policy" if jobs else "router", JOB_COLUMNS if jobs else REQUEST_COLUMNS)
    seeds = f"seed {about.seed}" + (
        f" and {about.seeds - 1} more, ± is the 95 % interval" * (about.seeds > 1)
    )
    made_by = f"Slim Scheduler {about.slim}, {seeds}{_sources(run)}"
    config = escape(msgspec.json.format(msgspec.json.encode(about.config), indent=2).decode())
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(about.title)}</title><style>{asset('report.css')}</style></head><body>",
            f"<header><h1>{escape(about.title)}</h1>",
            f'<p class="quiet">{escape(made_by)}</p></header><main>',
            '<section aria-labelledby="figures"><h2 id="figures">Figures</h2>',
            f"{figures}{_notes(run)}</section>",
            _models(run),
            *map(_figure, pictures),
            _faults(run),
            _replay(run),
            '<section aria-labelledby="config"><h2 id="config">Configuration</h2>',
            f"<p>Seed {about.seed}. The same configuration and seed give the same run.</p>",
            f"<details open><summary>All settings</summary><pre>{config}</pre></details></section>",
            "</main></body></html>\n",
        ]
    )


def _notes(run: Run) -> str:
    """Explain the columns of a run that placed jobs."""
    if run.about.kind != "jobs":
        return ""
    return (
        '<p class="quiet">comm/compute: communication that computing does not hide, over computing, in '
        "GPU-seconds. avoidable: the part of it that the closest placements would not have had. told "
        "durations: the policy knows how long jobs take, which a real cluster cannot tell it.</p>"
    )


def _sources(run: Run) -> str:
    """Say whether energy was measured or modelled."""
    sources = {str(row["energy_source"]) for row in run.rows if row.get("energy_source")}
    return f", energy {'; '.join(sorted(sources))}" if sources else ""


def _figure(picture: Picture) -> str:
    svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.caption)}" ', 1)
    return (
        f'<figure id="{picture.name}"><h2>{escape(picture.title)}</h2>'
        f'<div class="scroll" tabindex="0">{svg}</div>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _models(run: Run) -> str:
    """Return what was served, and the figures of each model where there are several."""
    if not run.about.models:
        return ""
    rows = [
        (model.name, str(len(model.segments)), _choices(model), f"{len(model.plans):,}")
        for model in run.about.models
    ]
    served = text_table(("model", "segments", "choices, narrow to wide", "plans"), rows, "Models")
    figures = model_rows(run.rows)
    by_model = table(figures, "model", MODEL_COLUMNS, "Figures by model") if figures else ""
    title = "Models" if len(rows) > 1 else "Model"
    return f'<section aria-labelledby="models"><h2 id="models">{title}</h2>{served}{by_model}</section>'


def _choices(model: ModelOutline) -> str:
    """Name the choices once where all segments have the same, else segment by segment."""
    return "; ".join(", ".join(names) for names in dict.fromkeys(model.segments))


def _faults(run: Run) -> str:
    if not run.about.faults:
        return ""
    verbs = {
        "kill": "is killed",
        "hang": "hangs",
        "restore": "returns",
        "slow": "is slowed",
        "slow-link": "has its link slowed",
        "leave": "leaves",
    }
    lines = "".join(
        f"<li>{fault.at_s:g} s: {escape(fault.server)} {verbs[fault.kind]}"
        + (f", {fault.slowdown:g} times as slow" if fault.kind.startswith("slow") else "")
        + "</li>"
        for fault in run.about.faults
    )
    return f'<section aria-labelledby="faults"><h2 id="faults">Faults</h2><ul>{lines}</ul></section>'


def _replay(run: Run) -> str:
    """Return the dashboard with this run in it."""
    if not run.frames:
        return ""
    inner = escape(replay_page(run.frames))
    return (
        '<section aria-labelledby="replay"><h2 id="replay">Replay</h2><details>'
        "<summary>Scrub through the run on the dashboard</summary>"
        f'<iframe title="Replay of the run" loading="lazy" srcdoc="{inner}"></iframe></details></section>'
    )
