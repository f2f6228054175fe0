"""Which gang holds which GPUs: the half of the scheduler that keeps the books."""

from collections.abc import Callable, Mapping
from typing import Final

from slimsched.jobs.domain.placement import Placement, Tier
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.scheduling.claims import Claim, Claims
from slimsched.jobs.scheduling.commands import Command, PreemptJob, StartJob
from slimsched.jobs.scheduling.evictable import Evictable
from slimsched.jobs.scheduling.free_gpus import FreeGpus, Spots
from slimsched.jobs.scheduling.job_state import CLAIMING, RUNNING, STOPPING, WAITING, JobState
from slimsched.jobs.scheduling.policy import Policy
from slimsched.jobs.scheduling.waiting import Waiting

MACHINE: Final = Tier.MACHINE
NETWORK: Final = Tier.NETWORK

Split = Callable[[str, Placement, FreeGpus], Placement]
"""Shares of a job's gang on the machines chosen for it, by job id, placement and what is free."""


class Occupancy:
    """GPUs free, held, claimed and lost; waiting and running jobs; quotas."""

    def __init__(
        self, *, topology: Topology, policy: Policy, quotas: Mapping[str, int] | None, split: Split | None
    ) -> None:
        self.topology = topology
        self.policy = policy
        self.free = FreeGpus(topology, calm=policy.calm)
        self.waiting = Waiting()
        self.jobs: dict[str, JobState] = {}
        self.running: dict[str, JobState] = {}
        self.spread: dict[str, JobState] = {}
        self.crossing: dict[str, list[int]] = {}
        self.claims = Claims(self.free)
        self.evictable = Evictable(self.free, policy)
        self.quotas = dict(quotas or {})
        self.tenant_gpus = dict.fromkeys(self.quotas, 0)
        self.down: set[str] = set()
        self._split = split
        self._preempts = policy.preempts
        self._commands: list[Command] = []

    def over_quota(self, tenant: str, gpus: int) -> bool:
        """Whether `gpus` more would exceed a tenant's quota."""
        quota = self.quotas.get(tenant)
        return quota is not None and self.tenant_gpus[tenant] + gpus > quota

    def _quota_name(self, job: JobState) -> str:
        """The tenant, if it has a quota."""
        return job.job.tenant if self.quotas and job.job.tenant in self.quotas else ""

    def _start(self, job: JobState, placement: Placement, now_s: float) -> None:
        if self._split is not None and len(placement) > 1:
            placement = self._split(job.id, placement, self.free)
        spots = self.free.spots(placement)
        self.free.take_at(spots)
        self._launch(job, placement, spots, now_s)

    def start_at(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Start a waiting job on these free GPUs."""
        self.waiting.leave(job)
        self._start(job, placement, now_s)

    def start_on_held(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Start a waiting job on GPUs that a claim has lent it."""
        self.waiting.leave(job)
        self._launch(job, placement, self.free.spots(placement), now_s)

    def _launch(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        """Start a job on GPUs that are already taken for it."""
        waited_s = now_s - job.since_s
        job.waited_s += waited_s
        declined_for_s = 0.0 if job.clock_s is None else now_s - job.clock_s
        self._occupy(job, placement, spots, now_s)
        self.policy.launched(job, job.tier, declined_for_s, now_s)
        self._commands.append(StartJob(job_id=job.id, placement=placement))

    def _occupy(self, job: JobState, placement: Placement, spots: Spots, now_s: float) -> None:
        job.placement = placement
        job.spots = spots
        tier = MACHINE if len(spots) == 1 else self.free.tier(spots)
        job.tier = tier
        machine, rack, network = job.slow
        job.slow_here = machine if tier == MACHINE else network if tier == NETWORK else rack
        job.phase = RUNNING
        job.since_s = now_s
        self.running[job.id] = job
        if tier > job.floor:
            self.spread[job.id] = job
        if tier == NETWORK:
            self._cross(job)
        if self._preempts:
            self.evictable.add(job, now_s)
        if self.quotas and job.job.tenant in self.quotas:
            self.tenant_gpus[job.job.tenant] += job.gpus

    def _cross(self, job: JobState) -> None:
        """Count a gang on the uplinks of its racks."""
        rack_of = self.free.rack_of
        racks = list(dict.fromkeys([rack_of[machine] for machine, _ in job.spots]))
        self.crossing[job.id] = racks
        for rack in racks:
            self.free.crossing[rack] += 1

    def _vacate(self, job: JobState, now_s: float, served_s: float | None) -> None:
        """Take a job off its GPUs; `served_s` is its service in all, if known."""
        del self.running[job.id]
        tier = job.tier
        if tier > job.floor:
            del self.spread[job.id]
        if tier == NETWORK:
            for rack in self.crossing.pop(job.id):
                self.free.crossing[rack] -= 1
        if self._preempts:
            self.evictable.remove(job)
        job.epoch += 1
        run_s = now_s - job.since_s
        job.ran_s += run_s
        self.policy.left(job, tier, run_s, None if served_s is None else served_s - job.served_s)
        if self.quotas and job.job.tenant in self.quotas:
            self.tenant_gpus[job.job.tenant] -= job.gpus
        placement, job.placement = job.placement, ()
        if self.down:
            placement = tuple(part for part in placement if part[0] not in self.down)
            self.free.give(placement)
        else:
            self.free.give_at(job.spots)
        self._fill_claims(placement, now_s)

    def _fill_claims(self, placement: Placement, now_s: float) -> None:
        """Let claims have what has come free; the rest is for everybody."""
        if self.claims.open:
            for claim in self.claims.missing(placement):
                self.claims.fill(claim, placement)
                self._launch_clear(claim, now_s)

    def stop(self, job: JobState, reason: str) -> None:
        """Ask for a running job to be stopped."""
        job.phase = STOPPING
        self.evictable.remove(job)
        self._commands.append(PreemptJob(job_id=job.id, reason=reason))

    def claim(
        self, job: JobState, placement: Placement, now_s: float, *, ready_s: float | None = None
    ) -> None:
        """Set these GPUs aside for a job, the missing ones as they come free; start it if none is missing."""
        if job.phase == WAITING:
            self.waiting.leave(job)
            job.phase = CLAIMING
        self._launch_clear(self.claims.add(job, placement, ready_s=ready_s), now_s)

    def _launch_clear(self, claim: Claim, now_s: float) -> None:
        """Start a claim's job if it has stopped where it was and no GPU is missing."""
        if not claim.missing_total and claim.job.phase == CLAIMING:
            self.claims.close(claim)
            self._launch(claim.job, claim.placement, self.free.spots(claim.placement), now_s)

    def correct(self, job: JobState, placement: Placement, now_s: float) -> None:
        """Note that the engine split a gang over its machines in another way than asked for."""
        self.evictable.remove(job)
        job.epoch += 1
        self.free.give(job.placement)
        self.free.take(placement)
        job.placement = placement
        job.spots = self.free.spots(placement)
        if self._preempts:
            self.evictable.add(job, now_s)

    # -- machines

    def _lose(self, name: str) -> list[JobState]:
        """A machine is gone: stop the gangs on it; returns the jobs whose claims came to nothing."""
        left = self.free.by_machine[self.free.index[name]]
        self.free.take(((name, left),))
        self.down.add(name)
        claimants = [claim.job for claim in self.claims.open.values() if name in claim.held]
        for job in claimants:
            self.claims.dissolve(job, self.down)
        for job in list(self.running.values()):
            if job.phase == RUNNING and any(machine == name for machine, _ in job.placement):
                self.stop(job, f"machine {name} is down")
        return [job for job in claimants if job.phase == CLAIMING]

    def _regain(self, name: str, now_s: float) -> None:
        """A machine is back: what nobody holds of it is free."""
        self.down.discard(name)
        used = sum(g for job in self.running.values() for machine, g in job.placement if machine == name)
        machine = self.topology.machines[self.free.index[name]]
        placement = ((name, machine.gpus - used),)
        self.free.give(placement)
        self._fill_claims(placement, now_s)
