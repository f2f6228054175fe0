"""The memory and the health of a gateway while it is under attack."""

import http.client
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from served import Served

GROWTH_BYTES = 200 * 2**20
HEALTH_S = 0.5


class Vitals:
    """Watches a gateway; at the end its memory must have stayed near its idle size, and health quick.

    `health_s` allows more where this machine is so busy that health is slow before the attack as well.
    """

    def __init__(self, served: Served, growth_bytes: int = GROWTH_BYTES) -> None:
        self._served, self._growth_bytes = served, growth_bytes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        solve_bound(served)
        self.idle_bytes = self.peak_bytes = rss_bytes(served)
        self.health_s = HEALTH_S + 5.0 * max(health_s(served.http) for _ in range(20))
        self.slowest_s = 0.0
        self.most_files = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            assert not self.failures, f"health failed: {self.failures[:3]}"
            assert self.slowest_s < self.health_s, f"health took {self.slowest_s:.2f} s"
            grown = self.peak_bytes - self.idle_bytes
            assert grown < self._growth_bytes, f"the gateway grew by {grown / 2**20:.0f} MiB"

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                self.slowest_s = max(self.slowest_s, health_s(self._served.http))
                self.peak_bytes = max(self.peak_bytes, rss_bytes(self._served))
                self.most_files = max(self.most_files, open_files(self._served))
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(f"{type(error).__name__} {error}")


def solve_bound(served: Served) -> None:
    """Ask for an answer, and for metrics until the fluid bound is there: its solver takes 60 MB, once."""
    image = (
        b'{"inputs":[{"name":"images","shape":[1,3,32,32],"datatype":"UINT8","data":['
        + b"0," * 3071
        + b"0]}]}"
    )
    give_up_s = time.monotonic() + 8.0
    while not served.metric("slim_bound_accuracy") > 0.0 and time.monotonic() < give_up_s:
        connection = http.client.HTTPConnection(served.http, timeout=30)
        connection.request("POST", "/v2/models/slimresnet/infer", image)
        connection.getresponse().read()
        connection.close()
        time.sleep(0.2)


def health_s(address: str) -> float:
    """Ask for health on a new connection and return how long that took."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/v2/health/ready")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - began_s


def rss_bytes(served: Served) -> int:
    """Return the memory of the gateway's process."""
    return 4096 * int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1])


def open_files(served: Served) -> int:
    """Return how many descriptors the gateway has open."""
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
