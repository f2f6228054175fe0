"""Our model behind mosec: a Rust front end that sends batches over a Unix socket to Python workers."""

import sys

from fixed_width import FixedWidth
from mosec import Server, Worker
from setting import read_setting


class Classify(Worker):
    """Takes raw images and returns raw classes."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        setting = read_setting()
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    def deserialize(self, data: bytes) -> bytes:
        """Return the raw body."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Return the raw answer."""
        return data

    def forward(self, data: list[bytes] | bytes) -> list[bytes] | bytes:
        """Classify a batch, or a single request if batching is off."""
        return self._model.classify(data) if isinstance(data, list) else self._model.classify([data])[0]


if __name__ == "__main__":
    setting = read_setting()
    sys.argv += [
        "--address=127.0.0.1",
        f"--port={setting.port}",
        f"--timeout={round(1e3 * setting.deadline_s)}",
        f"--capacity={max(1, setting.queue - setting.workers * setting.batch)}",  # less what runs
        "--log-level=warning",
    ]
    server = Server()
    server.append_worker(
        Classify, num=setting.workers, max_batch_size=setting.batch, max_wait_time=5, timeout=60
    )
    server.run()
