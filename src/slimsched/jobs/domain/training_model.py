"""What a training job computes and sends in one iteration."""

from msgspec import Struct

from slimsched.kernel.quantity import Amount, PositiveSeconds


class TrainingModel(Struct, frozen=True, kw_only=True):
    """Seconds of computing an iteration takes, and the gradient bytes that computing does not hide."""

    name: str
    compute_s: PositiveSeconds
    exposed_bytes: Amount
    source: str


NO_NETWORK = TrainingModel(name="", compute_s=1.0, exposed_bytes=0.0, source="a job that never communicates")
