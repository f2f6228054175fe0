"""`slim`, but each round of its Slurm controller is followed by a check that notebook and scheduler agree."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from job_checks import check_controller
from slimsched.cli.app import main
from slimsched.jobs.slurm.controller import SlurmController, SlurmSnapshot

_round = SlurmController.round


def checked_round(self: SlurmController, seen: SlurmSnapshot) -> None:
    _round(self, seen)
    check_controller(self)


if __name__ == "__main__":
    SlurmController.round = checked_round  # type: ignore[method-assign]
    main()
