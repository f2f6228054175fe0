"""A Slurm client that looks but does not touch."""

from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.execution.slurm.client import SlurmClient, place_arguments
from slimsched.jobs.execution.slurm.note import Memory


class DryRunClient(SlurmClient):
    """Collects the commands it would have run in `calls`; remembers nothing in Slurm."""

    def __init__(self, client: SlurmClient) -> None:
        super().__init__(conf=client.conf, timeout_s=client.timeout_s)
        self.calls: list[str] = []

    def place(self, job_id: str, placement: Placement, memory: Memory) -> None:
        """Say where a held job would be bound to."""
        self.calls.append(" ".join(["scontrol", *place_arguments(job_id, placement)]))

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write nothing."""

    def release(self, job_id: str) -> None:
        """Say that a held job would be released."""
        self.calls.append(f"scontrol release {job_id}")

    def hold(self, job_id: str) -> None:
        """Say that a waiting job would be held."""
        self.calls.append(f"scontrol hold {job_id}")

    def requeue_held(self, job_id: str) -> None:
        """Say that a running job would be stopped."""
        self.calls.append(f"scontrol requeuehold Incomplete {job_id}")
