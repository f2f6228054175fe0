"""The simulator's driver of the job scheduler: carries its commands out in simulated time.

Gangs that share a link slow each other down: `SharedLinks` is a fluid model of who gets how much of it, and
settles every affected gang's finish when a gang starts or ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final, Literal, assert_never, get_args

from msgspec import Struct

from slimsched.core.clock import Action, Timeline, Wake, WakeAt
from slimsched.jobs.domain import Job, Placement, gpus_in
from slimsched.jobs.scheduler.messages import (
    Event,
    JobFinished,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    PreemptJob,
    StartJob,
)
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.telemetry import JobEntry

# -- Who shares which link: iteration times of running gangs under contention (fluid model).
#
# A gang occupies a link for a share of its time, duty = t_link / t_iter. A few fixed-point rounds, only over
# gangs that share a link with the one that came or went. How much slower a link is for a gang with duty d:
#
#     fair       1 + the duties of the others
#     shifted    1 + max(0, d + the duties of the others − 1): iterations are shifted in time, so that gangs
#                send one after the other where there is room. After CASSINI's idea, at best: all shifts fit
#     priority   1 + the duties of those that compute more GPU-seconds per second of sending; they go first.
#                After Crux's idea

ROUNDS: Final = 3
Sharing = Literal["fair", "shifted", "priority"]
SHARINGS: tuple[str, ...] = get_args(Sharing)


@dataclass(slots=True, eq=False)
class RunningGang:
    """One gang at work: how far it is, how fast it goes, which links it uses."""

    job: Job
    placement: Placement
    served_s: float  # ideal seconds of work that it had done when it started
    updated_s: float  # when its progress was last taken into account
    remaining_s: float  # ideal seconds of work left then
    version: int = 0  # grows whenever its finish moves
    ideal_s: float = 1.0  # an iteration where it is closest together, nobody else on its links
    iteration_s: float = 1.0  # an iteration as it is now
    compute_s: float = 1.0
    machine_s: float = 0.0  # seconds that an iteration alone takes of each kind of link
    nic_s: float = 0.0
    uplink_s: float = 0.0
    latency_s: float = 0.0
    nics: list[int] = field(default_factory=list)  # machines whose cards it shares
    uplinks: list[int] = field(default_factory=list)  # racks whose uplinks it shares
    nic_duty: float = 0.0  # share of its time for which it occupies a card, and an uplink
    uplink_duty: float = 0.0
    intensity: float = 0.0  # GPU-seconds of computing per second of sending

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
        self._alone: dict[tuple[str, int], tuple[float, float]] = {}  # ideal and real iteration in a machine
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
        job, placement, sensitivity = gang.job, gang.placement, self._sensitivity
        if len(placement) == 1:
            key = (job.model, placement[0][1])
            pace = self._alone.get(key)
            if pace is None:
                iteration_s = sensitivity.model(job).compute_s + sensitivity.comm_at(job, placement).total_s()
                pace = self._alone[key] = (sensitivity.ideal_iteration_s(job, key[1]), iteration_s)
            gang.ideal_s, gang.iteration_s = pace
            if key[1] != job.gpus:
                gang.ideal_s *= sensitivity.pace(job, key[1])
            return None
        model = sensitivity.model(job)
        gpus = gpus_in(placement)
        gang.compute_s = model.compute_s
        gang.ideal_s = sensitivity.ideal_iteration_s(job, gpus)
        if gpus != job.gpus:
            gang.ideal_s *= sensitivity.pace(job, gpus)
        comm = sensitivity.comm_at(job, placement)
        comm_s = comm.total_s()
        gang.machine_s, gang.nic_s, gang.uplink_s, gang.latency_s = comm
        gang.iteration_s = gang.compute_s + comm_s
        if model.exposed_bytes <= 0.0:
            return None
        gang.intensity = gpus * gang.compute_s / max(comm_s, 1e-12)
        gang.nics = [self._index[name] for name, _ in placement]
        racks = list(dict.fromkeys([self._rack_of[machine] for machine in gang.nics]))
        gang.uplinks = racks if len(racks) > 1 else []
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


# -- What stopping a gang costs, and when machines fail.


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What stopping and resuming a gang costs."""

    save_s: float = 30.0
    restore_s: float = 30.0
    interval_s: float = 1800.0  # work that a failure can lose at most
    start_s: float = 0.0  # before the first start


class Failure(Struct, frozen=True, kw_only=True):
    """A machine that goes down at a time and comes back after its repair."""

    machine: str
    at_s: float
    repair_s: float


# -- The driver: carries out what the scheduler asks for, and feeds it what then happens.
#
# Progress is counted in ideal seconds. A gang's finish moves whenever its links get more or less crowded;
# the old finish stays on the timeline and is skipped when its time comes.

PACE_TOLERANCE: Final = 0.005
"""A gang's finish is moved when its pace changes by more than this share."""


class SimulatedJobs:
    """A cluster in simulated time under one scheduler; `log` is what happened so far."""

    def __init__(
        self,
        *,
        scheduler: JobScheduler,
        sensitivity: Sensitivity,
        jobs: Sequence[Job],
        checkpoint: Checkpoint | None = None,
        failures: Sequence[Failure] = (),
        sharing: Sharing = "fair",
    ) -> None:
        self.scheduler = scheduler
        self.sensitivity = sensitivity
        self.log: list[JobEntry] = []
        self._timeline = Timeline()
        self._on_finish: Action = self._finish  # bound once: it is scheduled most often
        self._links = SharedLinks(sensitivity, sharing)
        self._checkpoint = checkpoint or Checkpoint()
        self._jobs = {job.id: job for job in jobs}
        self._running: dict[str, RunningGang] = {}
        self._served_s: dict[str, float] = {}  # work of jobs that were stopped, as far as it was saved
        self._failed: set[str] = set()  # machines that are down
        self._wake_s = inf  # when the scheduler will be woken
        self._left = len(self._jobs)
        self._progress: Callable[[int], None] | None = None
        self._arrivals = sorted(jobs, key=attrgetter("arrival_s"))
        self._arrived = 0
        for failure in failures:
            self._timeline.at(failure.at_s, self._lose_machine, failure.machine)
            self._timeline.at(failure.at_s + failure.repair_s, self._regain_machine, failure.machine)

    def run(self, *, until_s: float = inf, progress: Callable[[int], None] | None = None) -> list[JobEntry]:
        """Run until all jobs are done, or until a time; returns the log."""
        self._progress = progress
        timeline, arrived = self._timeline, self._arrived
        arrivals_s = [job.arrival_s for job in self._arrivals]
        jobs = len(arrivals_s)
        while self._left:
            next_s = timeline.next_s()
            # arrivals stay off the timeline, which keeps it short; at equal times they go first
            if arrived < jobs and arrivals_s[arrived] <= next_s:
                arrival_s = arrivals_s[arrived]
                if arrival_s > until_s:
                    break
                timeline.now_s = arrival_s
                arrived += 1
                self._deliver(JobSubmitted(job=self._arrivals[arrived - 1]))
            elif next_s <= until_s and next_s < inf:
                timeline.advance()
            else:
                break
        self._arrived = arrived
        return self.log

    def _deliver(self, event: Event) -> None:
        """Feed one event to the scheduler, note it, and carry out what the scheduler asks for."""
        now_s = self._timeline.now_s
        commands = self.scheduler.handle(event, now_s=now_s)
        self.log.append((now_s, event, commands))
        for command in commands:
            if isinstance(command, StartJob):
                self._start(command, now_s)
            elif isinstance(command, PreemptJob):
                self._stop(command.job_id, now_s)
            elif isinstance(command, WakeAt):
                if command.at_s < self._wake_s:
                    self._wake_s = command.at_s
                    self._timeline.at(command.at_s, self._wake)
            else:
                assert_never(command)

    def _wake(self, _: None) -> None:
        """Wake the scheduler, unless an earlier wake-up has replaced this one."""
        if self._timeline.now_s == self._wake_s:
            self._wake_s = inf
            self._deliver(Wake())

    def _lose_machine(self, machine: str) -> None:
        self._failed.add(machine)
        self._deliver(NodeDown(machine=machine))

    def _regain_machine(self, machine: str) -> None:
        self._failed.discard(machine)
        self._deliver(NodeUp(machine=machine))

    def _start(self, command: StartJob, now_s: float) -> None:
        job_id, placement = command.job_id, command.placement
        job, served_s, ready_s = self._jobs[job_id], self._served_s.get(job_id), self._checkpoint.restore_s
        if served_s is None:
            served_s, ready_s = 0.0, self._checkpoint.start_s
        gang = RunningGang(job, placement, served_s, now_s + ready_s, job.service_s - served_s)
        self._running[job_id] = gang
        neighbours = self._links.join(gang)
        if neighbours is None:
            self._timeline.at(gang.finish_s(), self._on_finish, (gang, 0))
        else:
            self._settle(neighbours, now_s, new=gang)

    def _finish(self, planned: tuple[RunningGang, int]) -> None:
        """Finish a gang, unless its finish has moved since this one was planned."""
        gang, version = planned
        if gang.version != version:
            return
        job = gang.job
        job_id = job.id
        del self._running[job_id]
        self._left -= 1
        if gang.nics:
            self._settle(self._links.leave(gang), self._timeline.now_s)
        self._deliver(JobFinished(job_id=job_id, served_s=job.service_s))
        if self._progress is not None:
            self._progress(len(self._jobs) - self._left)

    def _stop(self, job_id: str, now_s: float) -> None:
        """Checkpoint a gang and stop it; on a lost machine it falls back to its last checkpoint."""
        gang = self._running.pop(job_id)
        gang.advance(now_s)
        gang.version += 1
        if gang.nics:
            self._settle(self._links.leave(gang), now_s)
        done_s = gang.job.service_s - gang.remaining_s
        saved_at_s = now_s + self._checkpoint.save_s
        if self._failed and any(name in self._failed for name, _ in gang.placement):
            interval_s = self._checkpoint.interval_s
            done_s = gang.served_s + (done_s - gang.served_s) // interval_s * interval_s
            saved_at_s = now_s
        self._served_s[job_id] = done_s
        self._timeline.at(saved_at_s, self._deliver, JobPreempted(job_id=job_id, served_s=done_s))

    def _settle(
        self, gangs: dict[RunningGang, None], now_s: float, *, new: RunningGang | None = None
    ) -> None:
        """Find the new pace of these gangs and move their finishes."""
        if not gangs:
            return
        before = [gang.iteration_s for gang in gangs]
        for gang in gangs:
            gang.advance(now_s)
        self._links.settle(gangs)
        timeline, on_finish = self._timeline, self._on_finish
        for gang, old_s in zip(gangs, before, strict=True):
            if gang is new or abs(gang.iteration_s - old_s) > PACE_TOLERANCE * old_s:
                gang.version += 1
                timeline.at(gang.finish_s(), on_finish, (gang, gang.version))
            else:
                gang.iteration_s = old_s
