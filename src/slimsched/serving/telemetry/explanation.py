"""Sentences that say why a router decided as it did, from the numbers that it kept."""

from slimsched.serving.domain.request import Why


def explain_route(reason: str, why: Why | None, runner_up: str) -> str:
    """Write one sentence: the reason, what the choice costs and is worth, what binds, and the runner-up.

    `runner_up` names the second best server and choice.
    """
    if why is None:
        return reason
    gives = f"{100 * why.worth:.2f} % within reach for {1e3 * why.cost_s:.3f} ms of device time"
    other = f"; next best {runner_up}, {100 * why.behind:.3f} points worse" if why.server >= 0 else ""
    return f"{reason}: {gives}; {_deciding(why.binding)}{other}"


def _deciding(binding: str) -> str:
    if not binding:
        return "device time is free"
    return "the load decides" if binding == "load" else f"{binding} decides"
