"""The page of `slim jobs whatif`: the present checked, the alternatives, who gains and who loses."""

from collections.abc import Sequence
from html import escape
from typing import Any

from slimsched import __version__
from slimsched.core.plots import COLOURS
from slimsched.dashboard.pictures import INK, Picture, draw
from slimsched.dashboard.report import figure, html_page, section, text_table
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.whatif import CLOSE, Gain, PolicyOutcome, WhatIf

SHOWN_GROUPS = 20
FIGURES = {
    "wait_mean_s": "mean wait",
    "wait_p90_s": "wait, 90th percentile",
    "jct_mean_s": "mean completion time",
    "makespan_s": "makespan",
    "utilization": "GPUs held",
}
HEADS = (
    "policy",
    "mean JCT",
    "against now",
    "mean wait",
    "makespan",
    "GPUs held",
    "comm GPU-h",
    "avoidable",
    "stops",
    "told durations",
)


def whatif_page(found: WhatIf) -> str:
    """Return the page as HTML; it needs nothing from outside."""
    title = f"What if: {found.jobs:,} jobs on {found.cluster}"
    size = f"{found.gpus:,} GPUs in {_count(found.racks, 'rack')}, {_count(found.users, 'user')}, "
    size += _span(found.days)
    return html_page(
        title,
        f"{size}. Slim Scheduler {__version__}",
        [
            section("answer", "In short", "".join(f"<p>{escape(one)}</p>" for one in in_short(found))),
            section("present", "Does the simulated present agree with the records?", _present(found)),
            section("policies", "Other policies on the same racks", _outcomes(found, elsewhere=False)),
            section("worlds", "Other racks and networks", _outcomes(found, elsewhere=True)),
            *_who(found, found.by_size, "size", "Who gains, by size of gang"),
            *_who(found, found.by_user, "user", "Who gains, by user"),
            section("reading", "How to read this", _assumptions(found)),
        ],
    )


def _span(days: float) -> str:
    """Return a length of time in the unit that suits it."""
    if days >= 2:
        return f"{days:.1f} days"
    hours = 24 * days
    return f"{hours:.1f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"


def in_short(found: WhatIf) -> list[str]:
    """Return the answer in two or three sentences."""
    off = found.differences()
    agreement = "agrees with" if found.agrees() else "differs from"
    lines = [
        f"The simulated present ({found.present}) {agreement} the records: mean wait "
        f"{_signed(off.get('wait_mean_s', 0.0))}, makespan {_signed(off.get('makespan_s', 0.0))}, "
        f"GPUs held {_signed(off.get('utilization', 0.0))}."
    ]
    if not (found.agrees() and found.agrees(found.modelled)):
        with_network = found.differences(found.modelled)
        lines.append(
            f"With models and a network it is {_signed(with_network.get('wait_mean_s', 0.0))} and "
            f"{_signed(with_network.get('makespan_s', 0.0))}. Above {CLOSE:.0%}, read the rest with care."
        )
    here = (one for one in found.outcomes if one.world == "as it is")
    now, then = found.outcomes[0].row.summary, next(o for o in here if o.policy == found.compared).row.summary
    lines.append(
        f"With {found.compared} the mean job would have been done after {_time(then.jct_mean_s)} instead of "
        f"{_time(now.jct_mean_s)} ({_signed(_change(then.jct_mean_s, now.jct_mean_s))}), and "
        f"communication would have taken {then.comm_gpu_s / 3600:,.1f} instead of "
        f"{now.comm_gpu_s / 3600:,.1f} GPU-hours."
    )
    losers = [gain for gain in found.by_user if gain.change > 0.01]
    lines.append(
        f"{len(losers)} of {len(found.by_user)} users would have been served later."
        if losers
        else "No user would have been served later on average."
    )
    return lines


def _present(found: WhatIf) -> str:
    shown = (found.simulated, found.modelled)
    off = [found.differences(figures) for figures in shown]
    rows = []
    for field, name in FIGURES.items():
        write = _percent if field == "utilization" else _time
        cells = [
            f"{write(getattr(figures, field))} ({_signed(one.get(field, 0.0))})"
            for figures, one in zip(shown, off, strict=True)
        ]
        rows.append((name, write(getattr(found.recorded, field)), *cells))
    heads = ("figure", "recorded", "simulated", "with models and a network")
    words = (
        f"Simulated: each job for as long as it really ran, under {found.present}. With models and a "
        "network: each job for its ideal time and what the network adds. That is the present which the "
        "alternatives are set beside."
    )
    return f"<p>{escape(words)}</p>{text_table(heads, rows, 'The present')}"


def _outcomes(found: WhatIf, *, elsewhere: bool) -> str:
    rows = []
    for one in found.outcomes:
        if (one.world != "as it is") == elsewhere:
            name = f"{one.policy} (now)" if one.policy == found.present else one.policy
            rows.append(_row(found, one, f"{one.world}: {name}" if elsewhere else name))
    if not elsewhere:
        return text_table(HEADS, rows, "Policies")
    heads = "racks and network: policy", *HEADS[1:]
    return text_table(heads, rows, "Racks and networks") if rows else "<p>None were asked for.</p>"


def _row(found: WhatIf, one: PolicyOutcome, name: str) -> tuple[str, ...]:
    figures, now = one.row.summary, found.outcomes[0].row.summary
    spread = one.row.ci95["jct_mean_s"]
    avoidable = figures.excess_comm / figures.comm_overhead if figures.comm_overhead else 0.0
    comm_gpu_h = figures.comm_gpu_s / 3600
    return (
        name,
        _time(figures.jct_mean_s) + (f" ± {_time(spread)}" if spread else ""),
        "–" if one is found.outcomes[0] else _signed(_change(figures.jct_mean_s, now.jct_mean_s)),
        _time(figures.wait_mean_s),
        _time(figures.makespan_s),
        _percent(figures.utilization),
        f"{comm_gpu_h:,.1f}",
        f"{max(0.0, avoidable * comm_gpu_h):,.1f}",
        f"{figures.preemptions:,.0f}",
        "yes" if POLICIES.make(one.policy).knows_service else "no",
    )


def _who(found: WhatIf, groups: Sequence[Gain], kind: str, title: str) -> list[str]:
    shown = groups[:SHOWN_GROUPS]
    rows = [
        (
            gain.group,
            f"{gain.jobs:,}",
            f"{gain.gpu_h:,.1f}",
            f"{_time(gain.wait_before_s)} → {_time(gain.wait_after_s)}",
            f"{_time(gain.jct_before_s)} → {_time(gain.jct_after_s)}",
            _signed(gain.change),
        )
        for gain in shown
    ]
    heads = (kind, "jobs", "ideal GPU-hours", "mean wait", "mean JCT", "JCT")
    rest = f"<p>The {SHOWN_GROUPS} largest of {len(groups)}.</p>" if len(groups) > SHOWN_GROUPS else ""
    words = f"<p>{escape(found.present)} (now) against {escape(found.compared)}, on the same racks.</p>"
    return [
        section(f"by-{kind}", title, words + text_table(heads, rows, title) + rest),
        figure(_picture(shown, kind, found.compared)),
    ]


def _picture(groups: Sequence[Gain], kind: str, policy: str) -> Picture:
    names = [gain.group for gain in groups]
    changes = [100 * gain.change for gain in groups]

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        axis.barh(names, changes, color=[COLOURS[2] if one <= 0 else COLOURS[3] for one in changes])
        axis.axvline(0.0, color=INK, linewidth=1)
        axis.set(xlabel="change of mean job completion time (%); left is a gain")
        axis.invert_yaxis()

    worst = max(groups, key=lambda gain: gain.change)
    caption = f"Change of the mean job completion time under {policy}, by {kind}. "
    caption += f"The largest loss or smallest gain: {worst.group}, {_signed(worst.change)}."
    height = 1.2 + 0.28 * len(names)
    return draw(f"gain-{kind}", f"Change of completion time by {kind}", caption, paint, height=height)


def _assumptions(found: WhatIf) -> str:
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in found.left_out.items() if count)
    models = "The model of every job is known, or was said not to communicate."
    if found.models_drawn:
        models = (
            f"The records name the model of {found.models_named:,} jobs. The others draw one of "
            f"{', '.join(found.models_drawn)}; figures are means over {found.seeds} draws, ± half the 95 % "
            "interval."
        )
    lines = [
        f"Left out: {left_out or 'nothing'}.",
        models,
        "A job's ideal time is its recorded time divided by the slowdown that the simulated present gives it "
        f"on the {found.network} network.",
        "comm GPU-h: GPU-hours spent on communication that computing does not hide.",
        f"GPUs lie idle for {found.handover_s:.1f} s between two jobs (a mean over the records).",
        "Jobs arrive as recorded, whatever the policy. CPUs, memory, priorities, drained machines and kinds "
        "of GPUs are not modelled.",
        "Avoidable: GPU-hours of communication that the most consolidated placements would not have had.",
    ]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _change(after: float, before: float) -> float:
    return after / before - 1.0 if before else 0.0


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 10800 else f"{seconds / 3600:,.2f} h"
