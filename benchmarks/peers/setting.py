"""The setting of a contender: the width and port it serves, and its tuning for the deadline."""

import os

import msgspec
from msgspec import Struct
from msgspec.structs import replace

VARIABLE = "SLIM_PEER_SETTING"


class Setting(Struct, frozen=True, kw_only=True):
    """The same for every contender; each uses the options it has.

    A batch fits well into the deadline. `queue` limits the requests under way, so that accepted ones can
    still be answered in time. A request that has waited longer than `patience_s` would be late even if its
    batch started now.
    """

    width: float
    port: int
    deadline_s: float
    images: int  # per request
    batch: int  # requests per batch
    batch_s: float  # time of such a batch on one core
    queue: int  # requests under way in the whole server
    workers: int = 2
    router: str = ""  # for ours: the router that chooses widths, if not the usual one

    @property
    def patience_s(self) -> float:
        """The longest wait after which an answer is still in time."""
        return max(0.1 * self.deadline_s, self.deadline_s - 1.2 * self.batch_s)

    def for_rate(self, images_per_s: float) -> "Setting":
        """Return a setting whose queue takes three fifths of the deadline at this rate."""
        in_time = int(0.6 * self.deadline_s * images_per_s / self.images)
        return replace(self, queue=max(2 * self.workers, self.workers * self.batch, in_time))

    def relaxed(self) -> "Setting":
        """Return a setting with more time and a longer queue, to measure throughput at saturation."""
        return replace(self, deadline_s=4 * self.deadline_s, queue=1024)

    def environment(self) -> dict[str, str]:
        """Return the environment variable that carries the setting into the server's processes."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def read_setting() -> Setting:
    """Read the setting of this process."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Setting)
