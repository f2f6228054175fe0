"""What a sender asks for besides the answer."""

from msgspec import Struct

from slimsched.serving.domain.request import NEVER_S, NO_PLAN


class Terms(Struct, frozen=True, kw_only=True):
    """The deadline counts from arrival; 0 means no floor or ceiling, NO_PLAN lets the router choose."""

    deadline_s: float = NEVER_S
    priority: int = 0
    min_accuracy: float = 0.0
    max_energy_j: float = 0.0
    plan: int = NO_PLAN


ANY_TERMS = Terms()
