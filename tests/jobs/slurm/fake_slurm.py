"""A Slurm made of a few numbers: it does what it is told, and now and then something else."""

from random import Random

from slimsched.jobs.domain import Placement, gpus_in
from slimsched.jobs.slurm.wire import (
    JobRequest,
    Memory,
    SlurmClient,
    SlurmError,
    SlurmGoneError,
    SlurmJob,
    SlurmNode,
    SlurmUnreachableError,
    Status,
    written,
)

GPUS = 4
WAITS = (Status.HELD, Status.QUEUED)


class FakeJob:
    """A job, and how long it still has to run."""

    def __init__(self, number: int, gpus: int, work_s: float, now_s: float, model: str) -> None:
        self.id, self.gpus, self.left_s, self.submit_s = str(number), gpus, work_s, now_s
        self.comment = written(JobRequest(model=model))
        self.admin_comment = ""
        self.status = Status.HELD
        self.requeued = False
        self.asked: Placement = ()
        self.placement: Placement = ()
        self.start_s: float | None = None
        self.restarts = 0


class FakeSlurm(SlurmClient):
    """Machines with four GPUs each; `step` lets time pass, and sometimes an operator act."""

    def __init__(self, rng: Random, machines: int = 4) -> None:
        super().__init__()
        self.rng, self.now_s = rng, 1000.0
        self.known: dict[str, FakeJob] = {}
        self.usable = {f"n{i}": True for i in range(machines)}
        self.finished: list[str] = []
        self.calls: list[str] = []

    def add(self, gpus: int, work_s: float) -> None:
        job = FakeJob(len(self.known) + 1, gpus, work_s, self.now_s, self.rng.choice(("bert", "lm", "")))
        self.known[job.id] = job

    def free(self) -> dict[str, int]:
        free = dict.fromkeys(self.usable, GPUS)
        for job in self.known.values():
            for name, gpus in job.placement:
                free[name] -= gpus
        return free

    def step(self, seconds: float, *, trouble: float) -> None:
        """Let time pass: jobs end, wait again or start; perhaps something odd happens."""
        self.now_s += seconds
        for job in self.known.values():
            if job.status is Status.ENDING:
                job.placement, job.start_s = (), None
                job.status = Status.HELD if job.requeued else Status.GONE
                job.restarts += job.requeued
                if not job.requeued:
                    self.finished.append(job.id)
            elif job.status is Status.RUNNING:
                job.left_s -= seconds
                if job.left_s <= 0.0:
                    job.status, job.requeued = Status.ENDING, False
        for job in self.known.values():
            if job.status is Status.QUEUED:
                self._start(job)
        if self.known and self.rng.random() < trouble:
            self._odd(self.rng.choice(list(self.known.values())))

    def _start(self, job: FakeJob) -> None:
        free = self.free()
        wanted = job.asked
        if not wanted:  # released by an operator: anywhere
            left, parts = job.gpus, []
            for name, gpus in free.items():
                take = min(gpus, left)
                parts += [(name, take)] if take else []
                left -= take
            wanted = () if left else tuple(parts)
        if wanted and all(self.usable[name] and free[name] >= gpus for name, gpus in wanted):
            assert gpus_in(wanted) == job.gpus
            job.placement, job.status, job.start_s = wanted, Status.RUNNING, self.now_s

    def _odd(self, job: FakeJob) -> None:
        """Let an operator act on a job, a job restart by itself, or a machine come or go."""
        what = self.rng.randrange(5)
        if what == 0 and job.status in WAITS:
            job.status = Status.GONE
            self.finished.append(job.id)
        elif what == 1 and job.status is Status.RUNNING:
            job.status, job.requeued = Status.ENDING, True
        elif what == 2 and job.status is Status.HELD:
            job.status = Status.QUEUED
        elif what == 3 and job.status is Status.RUNNING:
            job.restarts += 1
        elif what == 4:
            name = self.rng.choice(list(self.usable))
            if not any(name in dict(one.placement) for one in self.known.values()):
                self.usable[name] = not self.usable[name]

    # what the controller asks

    def jobs(self) -> list[SlurmJob]:
        return [
            SlurmJob(
                id=job.id, status=job.status, state=job.status.value, gpus=job.gpus, user="u",
                comment=job.comment, admin_comment=job.admin_comment, submit_s=job.submit_s,
                start_s=job.start_s, restarts=job.restarts, nodes="somewhere" * bool(job.placement),
            )
            for job in self.known.values()
        ]  # fmt: skip

    def placement(self, job: SlurmJob) -> Placement:
        return self.known[job.id].placement

    def nodes(self) -> list[SlurmNode]:
        return [SlurmNode(name=name, gpus=GPUS, usable=usable) for name, usable in self.usable.items()]

    # what the controller tells it

    def _told(self, call: str, job_id: str) -> FakeJob:
        self.calls.append(f"{call} {job_id}")
        if self.rng.random() < 0.004:
            raise SlurmUnreachableError("slurmctld is away")
        if self.rng.random() < 0.01:
            raise SlurmError("no")
        job = self.known[job_id]
        if job.status is Status.GONE or (job.status is Status.ENDING and not job.requeued):
            raise SlurmGoneError("already finished")
        return job

    def place(self, job_id: str, placement: Placement, memory: Memory) -> None:
        job = self._told(f"place {placement}", job_id)
        job.asked, job.admin_comment = placement, written(memory)

    def remember(self, job_id: str, memory: Memory) -> None:
        self.calls.append(f"remember {written(memory)} {job_id}")
        self.known[job_id].admin_comment = written(memory)

    def release(self, job_id: str) -> None:
        job = self._told("release", job_id)
        if job.status is Status.HELD:
            job.status = Status.QUEUED

    def hold(self, job_id: str) -> None:
        job = self._told("hold", job_id)
        if job.status is Status.QUEUED:
            job.status = Status.HELD

    def requeue_held(self, job_id: str) -> None:
        job = self._told("requeue", job_id)
        if job.status is Status.RUNNING:
            job.status, job.requeued = Status.ENDING, True
