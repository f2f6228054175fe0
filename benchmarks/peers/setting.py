"""What a contender is told: the width it serves, where, and how it shall be tuned for the deadline."""

import os

import msgspec
from msgspec import Struct
from msgspec.structs import replace

VARIABLE = "SLIM_PEER_SETTING"


class Setting(Struct, frozen=True, kw_only=True):
    """The same for every contender; each uses what it has a knob for.

    A batch is chosen to fit well into the deadline; `queue` bounds the requests that are under way so that
    what is taken in can still be answered in time; a request that has waited longer than `patience_s` would
    come too late even if its batch began now.
    """

    width: float
    port: int
    deadline_s: float
    images: int  # in one request
    batch: int  # requests
    batch_s: float  # what such a batch takes on one core
    queue: int  # requests under way in the whole server
    workers: int = 2

    @property
    def patience_s(self) -> float:
        """The longest wait after which an answer still comes in time."""
        return max(0.1 * self.deadline_s, self.deadline_s - 1.2 * self.batch_s)

    def for_rate(self, images_per_s: float) -> "Setting":
        """A queue that a server which holds this rate works off within three fifths of the deadline."""
        in_time = int(0.6 * self.deadline_s * images_per_s / self.images)
        return replace(self, queue=max(2 * self.workers, self.workers * self.batch, in_time))

    def relaxed(self) -> "Setting":
        """The same with time and room for what is under way at saturation, to measure throughput."""
        return replace(self, deadline_s=4 * self.deadline_s, queue=1024)

    def environment(self) -> dict[str, str]:
        """The variable that carries it into the server's processes."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def read_setting() -> Setting:
    """The setting of the process we are in."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Setting)
