"""The workloads of Sia's authors as jobs whose models say how they go on more or fewer GPUs.

A job keeps the batch size its user chose. Its model is an application at that batch size, and its work the
seconds on the GPUs it asks for. The network is in the measured pace and in nothing else.
"""

import csv
import io
import tarfile
from functools import cache
from pathlib import Path

from measured_models import SIZES, Scaling, SiaProfile

from slimsched.jobs.domain import Job, TrainingModel

ARCHIVE = Path("traces") / "sia_pollux_profiles_workloads.tar.gz"


def read_sia_workload(data: Path, name: str) -> tuple[list[Job], dict[str, TrainingModel]]:
    """Read jobs and models of a workload, such as `newtrace/workload-1`."""
    with tarfile.open(data / ARCHIVE) as archive:
        member = archive.extractfile(f"workloads/{name}.csv")
        assert member is not None
        rows = list(csv.DictReader(io.TextIOWrapper(member)))
        profile = cache(lambda application: SiaProfile(archive, application))
        models: dict[str, TrainingModel] = {}
        jobs = []
        for row in rows:
            application, batch = row["application"], int(row["batch_size"])
            model = f"{application}-{batch}"
            if model not in models:
                models[model] = TrainingModel(
                    name=model,
                    compute_s=1.0,
                    exposed_bytes=0.0,
                    source="Sia's T4s",
                    scaling=scaling_at(profile(application), batch),
                )
            gpus = int(row["num_replicas"])
            alone_s = profile(application).seconds(1, batch)
            assert alone_s is not None
            jobs.append(
                Job(
                    id=row["name"],
                    arrival_s=float(row["time"]),
                    gpus=gpus,
                    service_s=alone_s / models[model].pace(gpus),
                    model=model,
                )
            )
        return jobs, models


def scaling_at(profile: SiaProfile, batch: int) -> Scaling:
    """How an application scales at one batch size; sizes that it cannot be divided by are left out."""
    seconds = {gpus: profile.seconds(gpus, batch) for gpus in SIZES}
    alone_s = seconds[1]
    assert alone_s is not None
    return tuple((gpus, alone_s / own_s) for gpus, own_s in seconds.items() if own_s is not None)
