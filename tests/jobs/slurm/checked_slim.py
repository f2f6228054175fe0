"""`slim`, but its Slurm controller checks after each round that notebook and scheduler agree."""

from slimsched.cli.app import main
from slimsched.jobs.slurm.controller import SlurmController, SlurmSnapshot

_round = SlurmController.round


def checked_round(self: SlurmController, seen: SlurmSnapshot) -> None:
    _round(self, seen)
    self.validate()


if __name__ == "__main__":
    SlurmController.round = checked_round  # type: ignore[method-assign]
    main()
