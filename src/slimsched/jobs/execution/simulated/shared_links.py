"""Who shares which link: iteration times of running gangs under contention (fluid model).

A gang occupies a link for a share of its time, duty = t_link / t_iter. A few fixed-point rounds, only over
gangs that share a link with the one that came or went. How much slower a link is for a gang with duty d:

    fair       1 + the duties of the others
    shifted    1 + max(0, d + the duties of the others − 1): iterations are shifted in time so that gangs send
               one after the other where there is room. After CASSINI's idea, at best: all shifts fit
    priority   1 + the duties of those that compute more GPU-seconds per second of sending; they go first.
               After Crux's idea
"""

from typing import Final, Literal, get_args

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.scheduler.network import Sensitivity, Shape

ROUNDS: Final = 3
Sharing = Literal["fair", "shifted", "priority"]
SHARINGS: tuple[str, ...] = get_args(Sharing)


class RunningGang:
    """One gang at work: how far it is, how fast it goes, which links it uses."""

    __slots__ = (
        "compute_s",
        "ideal_s",
        "intensity",
        "iteration_s",
        "job",
        "latency_s",
        "machine_s",
        "nic_duty",
        "nic_s",
        "nics",
        "placement",
        "remaining_s",
        "served_s",
        "updated_s",
        "uplink_duty",
        "uplink_s",
        "uplinks",
        "version",
    )

    def __init__(self, job: Job, placement: Placement, served_s: float, start_s: float) -> None:
        self.job = job
        self.placement = placement
        self.served_s = served_s
        self.remaining_s = job.service_s - served_s
        self.updated_s = start_s
        self.version = 0
        self.compute_s = self.ideal_s = self.iteration_s = 1.0
        self.machine_s = self.nic_s = self.uplink_s = self.latency_s = 0.0
        self.nics: list[int] = []
        self.uplinks: list[int] = []
        self.nic_duty = self.uplink_duty = self.intensity = 0.0

    @property
    def rate(self) -> float:
        """Ideal seconds of work done per second."""
        return self.ideal_s / self.iteration_s

    def advance(self, now_s: float) -> None:
        """Take the work done since the last look into account."""
        if now_s > self.updated_s:
            done = (now_s - self.updated_s) * self.ideal_s / self.iteration_s
            self.remaining_s = max(0.0, self.remaining_s - done)
            self.updated_s = now_s

    def finish_s(self) -> float:
        """When it will be done at its present rate."""
        return self.updated_s + self.remaining_s * self.iteration_s / self.ideal_s


class SharedLinks:
    """The network cards and uplinks, and the gangs on each."""

    def __init__(self, sensitivity: Sensitivity, sharing: Sharing = "fair") -> None:
        self._sensitivity = sensitivity
        self._sharing = sharing
        self._alone: dict[tuple[str, int], tuple[float, float]] = {}
        topology = sensitivity.topology
        self._index = topology.index
        self._rack_of = topology.rack_of
        self._on_nic: list[dict[RunningGang, None]] = [{} for _ in topology.machines]
        self._on_uplink: list[dict[RunningGang, None]] = [{} for _ in topology.racks]
        self._nic_load = [0.0] * len(topology.machines)
        self._uplink_load = [0.0] * len(topology.racks)

    def join(self, gang: RunningGang) -> dict[RunningGang, None] | None:
        """Put a gang on its links; returns the gangs whose pace may change, itself included.

        None says that the gang uses no shared link: its pace is set and never changes.
        """
        job, placement = gang.job, gang.placement
        if len(placement) == 1:
            gpus = placement[0][1]
            key = (job.model, gpus)
            pace = self._alone.get(key)
            if pace is None:
                comm_s = self._sensitivity.comm_at(job, placement).total_s()
                compute_s = self._sensitivity.model(job).compute_s
                pace = (self._sensitivity.ideal_iteration_s(job, gpus), compute_s + comm_s)
                self._alone[key] = pace
            gang.ideal_s, gang.iteration_s = pace
            if gpus != job.gpus:
                gang.ideal_s *= self._sensitivity.pace(job, gpus)
            return None
        sensitivity = self._sensitivity
        model = sensitivity.model(job)
        machines: list[int] = []
        racks: dict[int, int] = {}
        gpus = most = 0
        for name, count in placement:
            machine = self._index[name]
            machines.append(machine)
            rack = self._rack_of[machine]
            racks[rack] = racks.get(rack, 0) + 1
            gpus += count
            most = max(most, count)
        gang.compute_s = model.compute_s
        gang.ideal_s = sensitivity.ideal_iteration_s(job, gpus)
        if gpus != job.gpus:
            gang.ideal_s *= sensitivity.pace(job, gpus)
        comm = sensitivity.comm(job, Shape(most, max(racks.values()), len(racks)))
        comm_s = comm.total_s()
        gang.machine_s, gang.nic_s, gang.uplink_s, gang.latency_s = comm
        gang.iteration_s = gang.compute_s + comm_s
        if model.exposed_bytes <= 0.0:
            return None
        gang.intensity = gpus * gang.compute_s / max(comm_s, 1e-12)
        gang.nics = machines
        gang.uplinks = list(racks) if len(racks) > 1 else []
        for machine in gang.nics:
            self._on_nic[machine][gang] = None
        for rack in gang.uplinks:
            self._on_uplink[rack][gang] = None
        return self._neighbours(gang)

    def leave(self, gang: RunningGang) -> dict[RunningGang, None]:
        """Take a gang off its links; returns the gangs whose pace may change."""
        neighbours = self._neighbours(gang)
        del neighbours[gang]
        for machine in gang.nics:
            del self._on_nic[machine][gang]
            self._nic_load[machine] -= gang.nic_duty
        for rack in gang.uplinks:
            del self._on_uplink[rack][gang]
            self._uplink_load[rack] -= gang.uplink_duty
        return neighbours

    def settle(self, gangs: dict[RunningGang, None]) -> None:
        """Find the iteration times of these gangs, everybody else's pace given."""
        for _ in range(ROUNDS):
            moved = False
            for gang in gangs:
                if self._settle_one(gang):
                    moved = True
            if not moved:
                return

    def _settle_one(self, gang: RunningGang) -> bool:
        """Find one gang's iteration time; returns whether its share of any link has changed."""
        nic_load, uplink_load = self._nic_load, self._uplink_load
        nic_duty, uplink_duty = gang.nic_duty, gang.uplink_duty
        uplink_s = 0.0
        if self._sharing == "fair":
            nic_s = gang.nic_s * (1.0 + max(0.0, _busiest(nic_load, gang.nics) - nic_duty))
            if gang.uplinks:
                uplink_s = gang.uplink_s * (1.0 + max(0.0, _busiest(uplink_load, gang.uplinks) - uplink_duty))
        elif self._sharing == "shifted":
            nic_s = gang.nic_s * max(1.0, _busiest(nic_load, gang.nics))
            if gang.uplinks:
                uplink_s = gang.uplink_s * max(1.0, _busiest(uplink_load, gang.uplinks))
        else:
            nic_s = gang.nic_s * (1.0 + max([self._before(gang, self._on_nic[m]) for m in gang.nics]))
            if gang.uplinks:
                before = [self._before(gang, self._on_uplink[r], uplink=True) for r in gang.uplinks]
                uplink_s = gang.uplink_s * (1.0 + max(before))
        gang.iteration_s = iteration_s = (
            gang.compute_s + max(gang.machine_s, max(nic_s, uplink_s)) + gang.latency_s
        )
        duty = nic_s / iteration_s
        moved = duty != nic_duty
        if moved:
            gang.nic_duty = duty
            for machine in gang.nics:
                nic_load[machine] = nic_load[machine] + (duty - nic_duty)
        if gang.uplinks:
            duty = uplink_s / iteration_s
            if duty != uplink_duty:
                moved = True
                gang.uplink_duty = duty
                for rack in gang.uplinks:
                    uplink_load[rack] = uplink_load[rack] + (duty - uplink_duty)
        return moved

    @staticmethod
    def _before(gang: RunningGang, on_link: dict[RunningGang, None], *, uplink: bool = False) -> float:
        """The duties of those on a link that send before this gang."""
        first = (other for other in on_link if other.intensity > gang.intensity)
        return sum(other.uplink_duty if uplink else other.nic_duty for other in first)

    def _neighbours(self, gang: RunningGang) -> dict[RunningGang, None]:
        neighbours: dict[RunningGang, None] = {}
        for machine in gang.nics:
            neighbours.update(self._on_nic[machine])
        for rack in gang.uplinks:
            neighbours.update(self._on_uplink[rack])
        return neighbours


def _busiest(load: list[float], links: list[int]) -> float:
    """The load of the busiest of these links."""
    most = load[links[0]]
    for link in links:
        if load[link] > most:
            most = load[link]
    return most
