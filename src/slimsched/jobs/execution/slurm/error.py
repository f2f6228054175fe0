"""What can go wrong between us and Slurm."""

from slimsched.kernel.errors import SlimError


class SlurmError(SlimError):
    """Slurm is missing, refuses a request, or cannot do what is asked of it."""


class SlurmUnreachableError(SlurmError):
    """Slurm's controller does not answer; what it was asked may or may not have happened."""


class SlurmDeniedError(SlurmError):
    """Slurm does not let us do this; we must be an operator or Slurm's own user."""


class SlurmGoneError(SlurmError):
    """The job has ended before Slurm could do what was asked; the next look will show that."""
