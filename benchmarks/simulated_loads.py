"""Simulates the loads of a recording with what its calibration measured, and prints them beside live.

The calibration is another run with other arrivals. "At its own speed" the fit comes from the load itself, so
that changes of the machine's speed between the two are left out. Calls that were under way while their own
client stood still are left out on both sides; "with stalls" has them.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from http_fit import Fitted, fit
from msgspec.structs import replace
from recording import Recording, Window, stood_still

from slimsched.cli.serving.scenario import LiveScenarioOptions
from slimsched.serving.api.limits import Limits
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.fronts import SimulatedFronts
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.registry import SERVING

WARM_UP_S = 1.0
"""Each load was sent for this long before it was measured, with the same arrivals."""

RUNS = 3
"""How often each load is simulated, with other fronts chosen for the calls."""


def print_beside(recording: Recording) -> None:
    """Print a row for each load, and the fit of the calibration and of each load."""
    setting, (calibration, *loads) = recording.setting, recording.windows
    scenario, paths = recorded_scenario(setting), setting["paths"]
    known = fit(calibration, scenario, paths, setting)
    print(json.dumps({"fit": "calibration", **known.described()}), flush=True)
    for window in (calibration, *loads):
        own = fit(window, scenario, paths, setting)
        live = live_figures(window, setting)
        model, at_own_speed = (simulated(window, scenario, one, setting) for one in (known, own))
        name = "calibration" if window is calibration else "load"
        print(
            json.dumps(
                {
                    name: window.load,
                    "live": live,
                    "live_with_stalls": live_figures(window, setting, clients_stalls=True),
                    "simulated": model,
                    "ratio": ratios(model, live),
                    "ratio_at_own_speed": ratios(at_own_speed, live),
                    "own": own.described(),
                }
            ),
            flush=True,
        )


def recorded_scenario(setting: dict[str, Any]) -> Scenario:
    """Return the scenario that was served, from its recorded text."""
    with TemporaryDirectory() as folder:
        if text := setting["config_text"]:
            path = Path(folder) / "recorded.toml"
            path.write_text(text)
            options = LiveScenarioOptions(config=path)
        else:
            options = LiveScenarioOptions(scenario=setting["config"])
        return options.read().for_clients(Limits().queue_s).scenario


def simulated(
    window: Window,
    scenario: Scenario,
    fitted: Fitted,
    setting: dict[str, Any],
) -> dict[str, float]:
    """Simulate the calls of a window as they left their clients, after the same warm-up as live."""
    images, deadline_s = int(setting["images"]), 1e-3 * float(setting["deadline_ms"])
    calls = window.tables["calls"]
    order = np.argsort(calls["sent_s"])
    left_s, compared = calls["sent_s"][order], ~stood_still(calls)[order]
    length_s = float(setting["seconds"])
    before_s = left_s[left_s < WARM_UP_S]
    sent_s = np.concatenate([before_s, WARM_UP_S + left_s])
    load = replace(scenario.load, rate_per_s=len(left_s) / length_s, seconds=WARM_UP_S + length_s)
    load = replace(load, warmup_s=WARM_UP_S, deadline_s=deadline_s)
    took_s, answers = [], []
    for seed in range(RUNS):
        fronts = SimulatedFronts(
            fitted.fronts, sent_s.tolist(), examples=images, deadline_s=deadline_s, seed=seed
        )
        trace = simulate(
            replace(fitted.apply(scenario), load=load),
            SERVING,
            fronts=fronts,
            drain=True,
            bound_accuracy=1.0,
        )
        done = fronts.calls()
        took_s.append((done.done_s - done.sent_s)[len(before_s) :][compared])
        answers.append(trace.answers.plan[trace.answers.answered_s >= WARM_UP_S])
    accuracy = scenario.cluster.models[0].quality.by_plan[np.concatenate(answers)].mean()
    return _figures(np.concatenate(took_s), float(accuracy), deadline_s)


def live_figures(
    window: Window, setting: dict[str, Any], *, clients_stalls: bool = False
) -> dict[str, float]:
    """Return the same figures as they were live."""
    calls = window.tables["calls"]
    took_s = np.where(calls["status"] == 200, calls["done_s"] - calls["sent_s"], np.nan)
    if not clients_stalls:
        took_s = took_s[~stood_still(calls)]
    return _figures(took_s, 0.01 * window.live["accuracy"], 1e-3 * float(setting["deadline_ms"]))


def ratios(model: dict[str, float], live: dict[str, float]) -> dict[str, float]:
    """Return simulated over live."""
    return {name: round(model[name] / live[name], 3) for name in live if live[name]}


def _figures(took_s: Any, accuracy: float, deadline_s: float) -> dict[str, float]:
    answered = took_s[~np.isnan(took_s)]
    return {
        "in_time": round(float((answered <= deadline_s).sum()) / max(1, len(took_s)), 4),
        "accuracy": round(100 * accuracy, 2),
        "mean_ms": round(1e3 * float(answered.mean()), 2) if len(answered) else 0.0,
        "p50_ms": round(1e3 * float(np.percentile(answered, 50)), 2) if len(answered) else 0.0,
        "p99_ms": round(1e3 * float(np.percentile(answered, 99)), 2) if len(answered) else 0.0,
    }
