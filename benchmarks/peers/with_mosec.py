"""Our network behind mosec: a Rust front, batches over a Unix socket to Python workers."""

import sys

from fixed_width import FixedWidth
from mosec import Server, Worker
from setting import read_setting


class Classify(Worker):
    """Raw bytes both ways."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        setting = read_setting()
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: list[bytes] | bytes) -> list[bytes] | bytes:
        """One batch, or one request where batches have one."""
        return self._model.classify(data) if isinstance(data, list) else self._model.classify([data])[0]


if __name__ == "__main__":
    setting = read_setting()
    sys.argv += [
        "--address=127.0.0.1",
        f"--port={setting.port}",
        f"--timeout={round(1e3 * setting.deadline_s)}",
        f"--capacity={max(1, setting.queue - setting.workers * setting.batch)}",  # without those in hand
        "--log-level=warning",
    ]
    server = Server()
    server.append_worker(
        Classify, num=setting.workers, max_batch_size=setting.batch, max_wait_time=5, timeout=60
    )
    server.run()
