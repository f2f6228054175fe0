"""What the job scheduler and the Slurm controller keep must agree: for tests, after any event or round."""

from collections import Counter
from collections.abc import Collection

from slimsched.jobs.domain import gpus_in
from slimsched.jobs.scheduler.eviction import Evictable, _Ripe
from slimsched.jobs.scheduler.gpus import NETWORK, Claims, FreeGpus
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.scheduler.waiting import CLAIMING, NOBODY, RUNNING, STOPPING, WAITING, JobState, Waiting
from slimsched.jobs.slurm.controller import JobStage, SlurmController

PHASES_OF = {
    JobStage.WAITING: (WAITING, CLAIMING),
    JobStage.STARTING: (RUNNING,),
    JobStage.RUNNING: (RUNNING,),
    JobStage.STOPPING: (STOPPING,),
}
"""Phases of the scheduler that a job may have at each stage of the controller, between two rounds."""


def check_jobs(machine: JobScheduler) -> None:
    """Raise an AssertionError unless all that a scheduler keeps agrees."""
    for job in machine.jobs.values():
        wrong = disagreement(machine, job)
        assert not wrong, f"{wrong}: {job.story()}"
    named = (("running", machine.running), ("spread", machine.spread), ("crossing", machine.crossing))
    for name, known in named:
        assert known.keys() <= machine.jobs.keys(), f"a job that is gone is still among those {name}"
    given, claimed = Counter[str](), Counter[str]()
    for job in machine.running.values():
        given.update(dict(job.placement))
    for claim in machine.claims.open.values():
        claimed.update(claim.held)
    all_free = machine.free
    for name, gpus, free in zip(all_free.names, all_free.capacity, all_free.by_machine, strict=True):
        counts = f"{name} has {gpus} GPUs: {free} free, {claimed[name]} claimed, {given[name]} given"
        if name in machine.down:
            assert not free + claimed[name], f"{counts}; but it is down"
        else:
            assert free + claimed[name] + given[name] == gpus, counts
    for rack, crossing in enumerate(all_free.crossing):
        crossed = sum(rack in racks for racks in machine.crossing.values())
        assert crossing == crossed, f"{crossed} gangs cross rack {rack}, but {crossing} are counted"
    for tenant, gpus in machine.tenant_gpus.items():
        have = sum(job.gpus for job in machine.running.values() if job.job.tenant == tenant)
        assert gpus == have, f"tenant '{tenant}' holds {have} GPUs, but {gpus} are counted"
    assert machine._armed_s <= machine.timers.next_s(), "nobody has asked for a wake-up at the next timer"
    check_free(all_free)
    check_claims(machine.claims)
    check_waiting(machine.waiting)
    check_evictable(machine.evictable, machine.running.values())


def disagreement(scheduler: JobScheduler, job: JobState) -> str:
    """What of a job does not agree with the rest, if anything."""
    runs = job.phase >= RUNNING
    claim = scheduler.claims.open.get(job.id)
    group = job.group
    wrong = {
        "it runs, or it does not, and the others think otherwise": runs != (job.id in scheduler.running),
        "it waits in a group, or should": (group is not None) != (job.phase == WAITING),
        "its group needs something else": group is not None
        and (group.gpus, group.tier, group.tenant) != (job.gpus, job.allowed, scheduler._quota_name(job)),
        "it has not as many GPUs as it should": gpus_in(job.placement) != (job.gpus if runs else 0),
        "its machines are not those of its placement": runs
        and job.spots != scheduler.free.spots(job.placement),
        "it could be closer together, or could not": (job.id in scheduler.spread)
        != (runs and job.tier > job.floor),
        "it crosses racks, or does not": (job.id in scheduler.crossing) != (runs and job.tier == NETWORK),
        "it waits for GPUs to be cleared, and none is missing": job.phase == CLAIMING
        and (claim is None or not claim.missing_total),
        "it has a claim that it cannot need": claim is not None and job.phase not in (CLAIMING, STOPPING),
        "its size is to change, but it is not being stopped": job.id in scheduler.next_gpus
        and job.phase != STOPPING,
    }
    return next((what for what, is_so in wrong.items() if is_so), "")


def check_free(free: FreeGpus) -> None:
    """All indices of the free GPUs say the same."""
    for i, count_free in enumerate(free.by_machine):
        rack, name = free.rack_of[i], free.names[i]
        sets = [count for count, machines in enumerate(free._with) if machines & free._bit[i]]
        in_rack = [
            count for count, machines in enumerate(free._racks_with[rack]) if machines & free._bit_in_rack[i]
        ]
        assert sets == in_rack == [count_free], f"{name}: {count_free} free, its sets say {sets}, {in_rack}"
    sums = [0] * len(free.by_rack)
    for rack, count_free in zip(free.rack_of, free.by_machine, strict=True):
        sums[rack] += count_free
    assert free.by_rack == sums, f"{sums} GPUs are free by rack, but {free.by_rack} are counted"
    assert free.total == sum(sums), f"{sum(sums)} GPUs are free, but {free.total} are counted"
    assert free._counts == sum(1 << count for count, machines in enumerate(free._with) if machines)


def check_claims(claims: Claims) -> None:
    """What is held and what is missing make up each claim."""
    for claim in claims.open.values():
        counted = {name: claim.held[name] + missing for name, missing in claim.missing.items()}
        assert counted == dict(claim.placement), f"{counted} held or missing: {claim.job.story()}"


def check_waiting(waiting: Waiting) -> None:
    """Groups hold the jobs that they count, each once."""
    for group in waiting.groups:
        live = [job for _, _, job, epoch in group.heap if job.epoch == epoch]
        assert 0 < group.size == len(live), f"{len(live)} jobs wait, but {group.size} are counted"
        for job in live:
            assert job.group is group, f"another group has it: {job.story()}"
    assert waiting.size == sum(group.size for group in waiting.groups), "not every waiting job is counted"
    assert waiting.least == min([group.gpus for group in waiting.groups], default=NOBODY)


def check_evictable(evictable: Evictable, running: Collection[JobState]) -> None:
    """Every class counts the GPUs of the jobs that are ripe for it."""
    ripe_jobs = [job for job in running if job.ripeness]
    assert set(ripe_jobs) == set(evictable._ripe), "others may be stopped than those that are ripe"
    for job in ripe_jobs:
        assert job.phase == RUNNING, f"it may still be stopped for others: {job.story()}"
    held = {(machine, job): gpus for job in ripe_jobs for machine, gpus in job.spots}
    counted_on = {(machine, job): on[job] for machine, on in enumerate(evictable._on) for job in on}
    assert counted_on == held, "other jobs may be stopped on a machine than run there"
    for ripe in evictable._classes:
        counted = _Ripe(ripe.number, [0] * len(ripe.by_machine), [0] * len(ripe.by_rack))
        for job in ripe_jobs:
            if job.ripeness > ripe.number:
                counted.count(job, evictable._free.rack_of, 1)
        gpus = (counted.by_machine, counted.by_rack, counted.total)
        assert (ripe.by_machine, ripe.by_rack, ripe.total) == gpus, f"class {ripe.number} is miscounted"


def check_controller(controller: SlurmController) -> None:
    """Notebook and scheduler agree."""
    scheduler, tracked_jobs = controller.scheduler, controller._tracked
    if scheduler is None or controller._broken:
        return  # both start afresh at the next look
    check_jobs(scheduler)
    assert scheduler.jobs.keys() == tracked_jobs.keys(), "scheduler and notebook know other jobs"
    assert not controller._put_aside & tracked_jobs.keys(), "a job that is left alone is tracked"
    assert controller.wake_s <= scheduler.timers.next_s(), "nobody will wake the scheduler in time"
    for job_id, tracked in tracked_jobs.items():
        state = controller._state(job_id)
        assert state.phase in PHASES_OF[tracked.stage], f"{tracked}, but {state.story()}"
        if state.phase >= RUNNING:
            assert set(tracked.placement) == set(state.placement), f"{tracked}, but {state.story()}"
