"""What serving over HTTP costs beyond the profiles, from one recorded window of a run.

A batch takes (overhead + slowdown × profile) × (1 + crowding × share of its time in which the other servers
of its GPU were busy). Ways of calls and messages are repeated as they were measured.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from recording import Window, aligned, stood_still
from served_log import Table

from slimsched.serving.domain.bundling import LONGEST_S, later_s
from slimsched.serving.domain.front_cost import FrontCost, MessageCost, Pauses
from slimsched.serving.domain.key import onward
from slimsched.serving.domain.service_cost import ServiceCost
from slimsched.serving.execution.live.gateway_time import fit_cost
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.gateway_cost import GatewayCost

PAUSE_S = 0.003
"""The gateway's work on one event takes less; what takes longer is a pause."""

WAITED_S = 0.001
"""A report that waits this long has met a gateway that stands still."""

LEANING = 0.05
"""How much a slowdown of 1 counts, as a share of all batches."""

CROWDINGS = np.linspace(0.0, 1.5, 31)
EXPRESS_BYTES = 128 * 2**10
"""Calls up to this size are read by the express line."""

Values = NDArray[np.float64]
Delays = tuple[float, ...]


class Fitted(Struct, frozen=True, kw_only=True):
    """What a window says about serving."""

    costs: tuple[ServiceCost, ...]
    crowding: float
    gateway: GatewayCost
    messages: MessageCost
    fronts: FrontCost

    def apply(self, scenario: Scenario) -> Scenario:
        """Return the scenario with these costs."""
        gateway = replace(scenario.gateway, event_s=self.gateway.event_s, request_s=self.gateway.request_s)
        return replace(
            scenario,
            costs=self.costs,
            gateway=gateway,
            messages=self.messages,
            neighbours_slowdown=(1.0 + self.crowding,) if self.crowding else (),
        )

    def described(self) -> dict[str, Any]:
        """Return the figures of the fit, in microseconds and factors."""
        delays = {
            "inward": self.fronts.inward_s,
            "outward": self.fronts.outward_s,
            "to_servers": self.messages.to_servers_s,
            "to_gateway": self.messages.to_gateway_s,
        }
        return {
            "batch_us": [round(1e6 * one.overhead_s) for one in self.costs],
            "slowdown": [round(one.slowdown, 3) for one in self.costs],
            "crowding": round(self.crowding, 3),
            "event_us": round(1e6 * self.gateway.event_s, 1),
            "request_us": round(1e6 * self.gateway.request_s, 1),
            "pause_every": self.fronts.pauses.every,
            "pause_ms": [round(1e3 * one, 1) for one in self.fronts.pauses.pause_s],
            "front_message_us": round(1e6 * self.fronts.message_s),
            **{f"{name}_us": [round(1e6 * float(np.mean(one))),
                              round(1e6 * float(np.percentile(one, 99)))]
               for name, one in delays.items()},
        }  # fmt: skip


def fit(
    window: Window, scenario: Scenario, paths: Sequence[Sequence[int]], setting: dict[str, Any]
) -> Fitted:
    """Fit everything to one window."""
    tables = aligned(window.tables)
    length_s = float(tables["calls"]["due_s"][-1])
    costs, crowding = _batches(tables["batch"], tables.get("full"), scenario, paths)
    gateway, pauses = _gateway(tables, length_s)
    images, deadline_s = int(setting["images"]), 1e-3 * float(setting["deadline_ms"])
    is_express = images * 3072 < EXPRESS_BYTES
    inward, outward = _http(tables, length_s)
    arrived = tables["arrived"]
    free = _found_free(tables["event"], gateway, arrived["arrival_s"], arrived["at_s"])
    message_s = float(np.median((arrived["at_s"] - arrived["arrival_s"])[free]))
    fronts = FrontCost(
        fronts=max(1, int(setting["fronts"])),
        inward_s=inward,
        outward_s=outward,
        message_s=max(0.0, message_s),
        longest_s=later_s(deadline_s) if is_express else LONGEST_S,
        gathers=is_express,
        pauses=pauses,
    )
    messages = _messages(tables, gateway, length_s)
    return Fitted(costs=costs, crowding=crowding, gateway=gateway, messages=messages, fronts=fronts)


def _batches(
    own: Table, full: Table | None, scenario: Scenario, paths: Sequence[Sequence[int]]
) -> tuple[tuple[ServiceCost, ...], float]:
    """Fit overhead and slowdown of each server, and one crowding for all.

    The batches of the full server, where there are any, help to tell size and crowding apart.
    """
    batch = own
    if full is not None:  # long before the others
        batch = {name: np.append(_earlier(name, full[name]), values) for name, values in own.items()}
    took_s = batch["ended_s"] - batch["at_s"]
    alone_s = np.array(
        [
            _alone_s(scenario, int(server), int(size), paths[path])
            for server, size, path in zip(batch["server"], batch["size"], batch["path"], strict=True)
        ]
    )
    shares = _crowded(batch, scenario)
    best = (np.inf, 0.0)
    for crowding in CROWDINGS if shares.any() else CROWDINGS[:1]:
        error = 0.0
        for server in range(len(scenario.cluster)):
            its = batch["server"] == server
            factor = 1.0 + crowding * shares[its]
            overhead_s, slowdown = _line(alone_s[its] * factor, took_s[its], factor)
            usual_s = (overhead_s + slowdown * alone_s[its]) * factor
            error += float(np.abs(took_s[its] - usual_s).sum())
        best = min(best, (error, float(crowding)))
    crowding, costs = best[1], []
    for server in range(len(scenario.cluster)):
        its = batch["server"] == server
        factor = 1.0 + crowding * shares[its]
        overhead_s, slowdown = _line(alone_s[its] * factor, took_s[its], factor)
        costs.append(ServiceCost(overhead_s=overhead_s, slowdown=slowdown))
    return tuple(costs), crowding


def _earlier(name: str, values: NDArray[Any]) -> NDArray[Any]:
    return values - 1e3 if name in ("at_s", "ended_s") else values


def _alone_s(scenario: Scenario, server: int, size: int, path: Sequence[int]) -> float:
    """Return what the profile says about a batch that runs a whole path."""
    key = scenario.cluster.models[0].keys[0, path[0], -1]
    return scenario.cluster.profiles[server].latency_s(onward(key, tuple(path[1:])), size)


def _line(alone_s: Values, took_s: Values, ones: Values) -> tuple[float, float]:
    """Fit overhead and slowdown, neither below 0.

    Where all batches have one size, the two cannot be told apart. So the fit leans towards the profile.
    """
    from scipy.optimize import nnls  # it takes long to import

    weight = LEANING * float(np.linalg.norm(alone_s))
    columns = np.vstack([np.column_stack([ones, alone_s]), [0.0, weight]])
    (overhead_s, slowdown), _ = nnls(columns, np.append(took_s, weight))
    return float(overhead_s), max(1e-3, float(slowdown))


def _crowded(batch: Table, scenario: Scenario) -> Values:
    """Return for each batch the share of its time in which another server of its GPU was busy."""
    shares = np.zeros(len(batch["at_s"]))
    hosts = scenario.hosts
    for server, host in enumerate(hosts):
        near = [
            other
            for other, its in enumerate(hosts)
            if host and its and other != server and host.kind == its.kind == "cuda" and host.gpu == its.gpu
        ]
        busy = np.isin(batch["server"], near)
        if not busy.any():
            continue
        starts, ends = np.sort(batch["at_s"][busy]), np.sort(batch["ended_s"][busy])
        mine = batch["server"] == server
        began_s, ended_s = batch["at_s"][mine], batch["ended_s"][mine]
        with_s = _busy_until(ended_s, starts, ends) - _busy_until(began_s, starts, ends)
        shares[mine] = np.clip(with_s / np.maximum(1e-9, ended_s - began_s), 0.0, 1.0)
    return shares


def _busy_until(at_s: Values, starts: Values, ends: Values) -> Values:
    """Return how long one server was busy until each time."""
    done, begun = np.searchsorted(ends, at_s), np.searchsorted(starts, at_s)
    total = np.append(0.0, np.cumsum(ends - starts))
    running = np.where(begun > done, at_s - starts[np.minimum(done, len(starts) - 1)], 0.0)
    return total[done] + running


def _gateway(tables: dict[str, Table], length_s: float) -> tuple[GatewayCost, Pauses]:
    """Fit what events and requests take, and how often and how long the gateway stops.

    While a report waits, the gateway goes from one event to the next, so the time between them is its work.
    Far longer ones are pauses: Python's collector, which looks at everything once so many requests have come.
    """
    event, heard = tables["event"], tables["heard"]
    at_s, requests = event["at_s"], event["requests"]
    came_s = heard["finished_s"] + np.percentile(heard["at_s"] - heard["finished_s"], 1)
    taken = np.searchsorted(at_s, heard["at_s"])  # which event each report was
    waited = np.zeros(len(at_s))  # at each event, how long the report that waited longest had done so
    np.maximum.at(waited, taken, heard["at_s"] - came_s)
    took_s = np.diff(at_s)
    inside = (at_s[:-1] >= 0.0) & (at_s[1:] < length_s)
    busy = inside & (waited[1:] >= took_s)
    work = busy & (took_s < PAUSE_S)
    cost = fit_cost(took_s[work], np.ones(int(work.sum())), requests[:-1][work])
    stops = _stops(at_s, came_s, heard["at_s"], inside)
    every = max(1, int(requests[:-1][inside].sum() / max(1, len(stops))))
    return cost, Pauses(every=every, pause_s=tuple(stops.tolist()))


def _stops(at_s: Values, came_s: Values, heard_s: Values, inside: NDArray[np.bool_]) -> Values:
    """Return the times between two events, long ones, in which a report waited."""
    long = np.flatnonzero(inside & (np.diff(at_s) > PAUSE_S))
    order = np.argsort(came_s)
    first = np.searchsorted(came_s[order], at_s[long])
    found = [
        place
        for place, begin in zip(long.tolist(), first.tolist(), strict=True)
        if begin < len(order)
        and came_s[order[begin]] < at_s[place + 1] - WAITED_S
        and heard_s[order[begin]] >= at_s[place + 1]
    ]
    stops: Values = np.diff(at_s)[found]
    return stops


def _messages(tables: dict[str, Table], gateway: GatewayCost, length_s: float) -> MessageCost:
    """Return how long messages between gateway and servers took.

    Those to servers count from when the gateway began with an event, and hold its work on it. Those to the
    gateway count from the end of the batch: a server first starts the next one. Only reports that found the
    gateway free count: the simulated gateway lets the others wait by itself.
    """
    sent = dict(zip(tables["sent"]["block"].tolist(), tables["sent"]["at_s"].tolist(), strict=True))
    landed = tables["landed"]
    known = [block in sent for block in landed["block"].tolist()]
    began_s = np.array([sent[block] for block in landed["block"][known].tolist()])
    heard, batch = tables["heard"], tables["batch"]
    batches = zip(batch["block"].tolist(), batch["server"].tolist(), strict=True)
    ended = dict(zip(batches, batch["ended_s"].tolist(), strict=True))
    reports = zip(heard["block"].tolist(), heard["server"].tolist(), strict=True)
    ended_s = np.array([ended.get(one, np.nan) for one in reports])
    free = _found_free(tables["event"], gateway, heard["finished_s"], heard["at_s"]) & ~np.isnan(ended_s)
    return MessageCost(
        to_servers_s=_delays(began_s, landed["at_s"][known] - began_s, length_s),
        to_gateway_s=_delays(ended_s[free], (heard["at_s"] - ended_s)[free], length_s),
    )


def _found_free(event: Table, gateway: GatewayCost, sent_s: Values, taken_s: Values) -> NDArray[np.bool_]:
    """Say which messages found a gateway that had been done with everything when they were sent."""
    done_s = event["at_s"] + gateway.event_s + gateway.request_s * event["requests"]
    before = np.searchsorted(event["at_s"], taken_s) - 1
    return (before < 0) | (done_s[before] <= sent_s)


def _http(tables: dict[str, Table], length_s: float) -> tuple[Delays, Delays]:
    """Return the delays of calls: until a front has read them, and from the gateway to the client."""
    done, calls = tables["done"], tables["calls"]
    order = np.argsort(done["request"])
    first, count, at_s = done["request"][order], done["count"][order], done["at_s"][order]
    size = int(np.gcd.reduce(tables["arrived"]["count"]))  # of a call
    rows: list[tuple[float, float, float, float]] = []  # sent, read, answered, ended
    used = ~stood_still(calls) & (calls["status"] == 200)
    for number, sent_s, ended_s, inside_s in zip(
        *(calls[name][used].tolist() for name in ("request", "sent_s", "done_s", "inside_s")), strict=True
    ):
        begin = int(np.searchsorted(first, number, side="right")) - 1
        after = int(np.searchsorted(first, number + size))
        if number < 0 or begin < 0:
            continue
        starts = np.maximum(first[begin:after], number)
        own = np.minimum(first[begin:after] + count[begin:after], number + size) - starts
        if own.sum() == size:  # the receipt has the mean of its parts
            parts_s = at_s[begin:after]
            rows.append((sent_s, float(parts_s @ own) / size - inside_s, float(parts_s.max()), ended_s))
    sent, read, answered, ended = np.array(rows).T
    return _delays(sent, read - sent, length_s), _delays(answered, ended - answered, length_s)


def _delays(at_s: Values, delay_s: Values, length_s: float) -> Delays:
    """Return measured delays in the order of time, of those that began within the window."""
    inside = (at_s >= 0.0) & (at_s < length_s)
    order = np.argsort(at_s[inside], kind="stable")
    return tuple(np.maximum(0.0, delay_s[inside][order]).tolist()) or (0.0,)
