"""The gangs of the traffic benchmark, as a user submits them and as the simulator sees them."""

import random
from typing import NamedTuple

from racks import FABRIC, MACHINES_PER_RACK, SCALE, Racks

from slimsched.jobs.domain import Job, TrainingModel
from slimsched.jobs.scheduler.network import Sensitivity

COMPUTE_S = 0.2
GRADIENT_BYTES = {"talkative": 1_250_000, "quiet": 50_000}
"""Real bytes of an iteration; across racks the first takes 0.6 s in place of 0.25 s, the second 0.22 s."""
MODELS = {
    name: TrainingModel(name=name, compute_s=COMPUTE_S, exposed_bytes=float(SCALE * size), source="made up")
    for name, size in GRADIENT_BYTES.items()
}
SIZES = (1, 2, 2, 4, 4, 8, 8, 8, 16)
LIMIT_S = 120.0


class Gang(NamedTuple):
    """A job: when it comes, what it trains, for how many iterations."""

    arrival_s: float
    gpus: int
    model: str
    steps: int

    def machines(self, gpus_per_machine: int) -> int:
        """Machines that a user asks Slurm for: no more than needed."""
        return -(-self.gpus // gpus_per_machine)


def draw(count: int, seed: int, sensitivity: Sensitivity) -> list[Gang]:
    """Draw gangs of 6 to 18 ideal seconds that come faster than the cluster can run them."""
    rng = random.Random(seed)
    at_s = 0.0
    gangs = []
    for _ in range(count):
        at_s += rng.expovariate(1 / 1.2)
        gpus = rng.choice(SIZES)
        model = "talkative" if rng.random() < 0.75 else "quiet"
        ideal_s = sensitivity.ideal_iteration_s(
            Job(id="", arrival_s=0.0, gpus=gpus, service_s=1.0, model=model)
        )
        gangs.append(Gang(at_s, gpus, model, round(rng.uniform(6, 18) / ideal_s)))
    return gangs


def sensitivity_of(racks: Racks) -> Sensitivity:
    """What the network means to the models here."""
    assert len(racks.topology.machines) % MACHINES_PER_RACK == 0
    return Sensitivity(topology=racks.topology, fabric=FABRIC, models=MODELS)


def model_file() -> str:
    """The models as the file that `slim jobs run --model-file` reads."""
    return "".join(
        f'[[model]]\nname = "{one.name}"\ncompute_s = {one.compute_s}\n'
        f"gradient_mb = {one.exposed_bytes / 1e6}\n"
        for one in MODELS.values()
    )
