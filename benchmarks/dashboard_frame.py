"""What the dashboard costs the serving loop: the time to observe an answer and to make a frame.

python benchmarks/dashboard_frame.py --rate 10000
"""

import argparse
from statistics import median
from time import perf_counter

from slimsched.serving.domain.cluster import GATEWAY_NAME
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Answer, RequestsArrived
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.telemetry.live_view import LiveView

STEP_S, WINDOW_S = 0.005, 10.0


def main() -> None:
    """Feed a live view twelve simulated seconds of answers; time frames once its window of ten is full."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=10_000, help="answers per second")
    per_step = int(parser.parse_args().rate * STEP_S)
    scenario = load_scenario("paper")
    gateway = Gateway(scenario.cluster, make_router("sed", scenario.cluster, 0), scenario.gateway)
    view = LiveView(gateway, "sed", window_s=WINDOW_S)
    observed_s, frames_s, number = 0.0, [], 0
    for step in range(int((WINDOW_S + 2.0) / STEP_S)):
        now_s = step * STEP_S
        requests = tuple(
            Request(
                id=number + n,
                arrival_s=now_s - 0.05 * (n + 1) / per_step,
                deadline_s=now_s + 1.0,
                path=(3, 3, 1, 0),
            )
            for n in range(per_step)
        )
        number += per_step
        began_s = perf_counter()
        view.observe(now_s, GATEWAY_NAME, RequestsArrived(requests=requests), [Answer(requests=requests)])
        observed_s += perf_counter() - began_s
        if now_s > WINDOW_S and step % 50 == 0:
            began_s = perf_counter()
            view.frame(now_s)
            frames_s.append(perf_counter() - began_s)
    print(f"an answer {1e6 * observed_s / number:.2f} µs, a frame {1e3 * median(frames_s):.2f} ms (median)")


if __name__ == "__main__":
    main()
