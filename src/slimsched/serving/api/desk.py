"""The desk: where both protocols hand in inference calls, in the gateway or in a front process."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from slimsched.core.config import SlimError
from slimsched.serving.api.call import Call
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.model_face import ModelFace
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.shared_memory import SharedMemory
from slimsched.serving.api.tally import Seconds
from slimsched.serving.live.calls import Receipt
from slimsched.serving.live.memory import InputArena

CLIENT_LEFT = "499"
"""The code that metrics count when a client left before its answer. It is never sent."""


class ModelsChangedError(SlimError):
    """The model of a call was replaced by another version before the call was accepted."""


class ResponseTally(Protocol):
    """Counts responses."""

    express: int

    def count_response(self, protocol: str, kind: str, code: str, seconds: float) -> None:
        """Count a response; `kind` is "infer" or "other"."""

    def count_responses(self, protocol: str, kind: str, code: str, seconds: Seconds) -> None:
        """Count responses with one code."""

    def count_cuts(self, protocol: str, cuts: Mapping[str, int]) -> None:
        """Count clients that were turned away unheard, by reason."""

    def count_examples(self, receipts: Sequence[Receipt]) -> None:
        """Count answered examples."""

    def count_calls(self, receipt: Receipt, examples: int, network_s: Seconds) -> None:
        """Count calls on one receipt."""
        ...


class Desk(Protocol):
    """Answers inference calls, or refuses them with a reason."""

    limits: Limits
    ledger: Ledger
    memory: SharedMemory

    @property
    def tally(self) -> ResponseTally:
        """The counts of responses."""
        ...

    @property
    def arena(self) -> InputArena | None:
        """Memory for large inputs that the servers can read."""
        ...

    @property
    def passes_on(self) -> bool:
        """Whether everything but inference is answered, and counted, by another process."""
        ...

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        ...

    async def infer(self, call: Call) -> InferenceResult:
        """Run a call; raise a refusal that says why not, or ModelsChangedError."""
        ...
