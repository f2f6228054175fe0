"""The numbers behind a routing decision; `telemetry/explanation.py` makes sentences of them."""

from msgspec import Struct


class Why(Struct, frozen=True, array_like=True, gc=False):
    """What a decision was weighed against.

    `binding` is the limit of the goal that decides now, 'load' if only the load does, or empty if device time
    is free. `worth` is the accuracy within reach after this choice, `cost_s` the device time per example of
    the rest of the plan, as the router expects it. The runner-up was `server` at `choice` (-1: there was
    none); it was `behind` by so much, in accuracy.
    """

    binding: str = ""
    worth: float = 0.0
    cost_s: float = 0.0
    server: int = -1
    choice: int = -1
    behind: float = 0.0
