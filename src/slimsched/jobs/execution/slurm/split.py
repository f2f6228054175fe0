"""How Slurm shares a gang out over the machines it must use (see docs/decisions for what was tried).

Equal shares can be pinned. Unequal ones cannot: Slurm then fills the machines one after the other in its
own order, leaving at least one GPU for each that is still to come.
"""

from slimsched.jobs.domain.placement import Placement, gpus_in
from slimsched.jobs.scheduling.free_gpus import FreeGpus


def split(job_id: str, placement: Placement, free: FreeGpus) -> Placement:
    """Equal shares where each machine has room for one; else Slurm's own filling."""
    machines = sorted(free.index[name] for name, _ in placement)
    room = [free.by_machine[machine] for machine in machines]
    left, share = gpus_in(placement), equal_share(gpus_in(placement), len(machines))
    if share and min(room) >= share:
        return tuple((free.names[machine], share) for machine in machines)
    parts: list[tuple[str, int]] = []
    for i, machine in enumerate(machines):
        gpus = min(room[i], left - (len(machines) - 1 - i))
        parts.append((free.names[machine], gpus))
        left -= gpus
    return tuple(parts)


def pinned_share(placement: Placement) -> int:
    """The share all machines have in common, or 0."""
    shares = {gpus for _, gpus in placement}
    return shares.pop() if len(shares) == 1 else 0


def equal_share(gpus: int, machines: int) -> int:
    """GPUs a machine if they can be shared out equally, or 0."""
    return 0 if gpus % machines else gpus // machines
