"""What a training job computes and sends in one iteration, and how it goes with more or fewer GPUs."""

from msgspec import Struct

from slimsched.kernel.quantity import Amount, Count, PositiveAmount, PositiveSeconds

Scaling = tuple[tuple[Count, PositiveAmount], ...]
"""(GPUs, pace on that many, together and with the network to themselves); ascending, the pace on one is 1."""


class TrainingModel(Struct, frozen=True, kw_only=True):
    """Seconds of computing an iteration takes, and the gradient bytes that computing does not hide.

    `scaling` is there for models whose jobs may change their number of GPUs.
    """

    name: str
    compute_s: PositiveSeconds
    exposed_bytes: Amount
    source: str
    scaling: Scaling = ()

    def sizes(self, asked: int) -> Scaling:
        """Return the sizes a job may have that asks for N GPUs, each with its pace relative to those.

        A job keeps what it asks for where nobody has measured the model's pace on that many.
        """
        if not self.scaling or not self.scaling[0][0] <= asked <= self.scaling[-1][0]:
            return ((asked, 1.0),)
        at_asked = self.pace(asked)
        return tuple((gpus, pace / at_asked) for gpus, pace in self.scaling)

    def pace(self, gpus: int) -> float:
        """Return the pace on `gpus` GPUs, between two measured sizes by interpolation."""
        below = max(pair for pair in self.scaling if pair[0] <= gpus)
        above = min(pair for pair in self.scaling if pair[0] >= gpus)
        if above[0] == below[0]:
            return below[1]
        return below[1] + (above[1] - below[1]) * (gpus - below[0]) / (above[0] - below[0])


NO_NETWORK = TrainingModel(name="", compute_s=1.0, exposed_bytes=0.0, source="a job that never communicates")
