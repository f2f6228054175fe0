"""Our model behind mosec on a GPU: each worker runs the whole network at one width as CUDA graphs.

    SLIM_MOSEC="PORT WIDTH WORKERS IMAGES BATCH" python benchmarks/peers/with_mosec_cuda.py

IMAGES is the number in each request, BATCH the most images of one batch. The workers are started afresh and
read the same variable.
"""

import os
import sys
from collections.abc import Sequence

import torch
from mosec import Server, Worker

from slimsched.serving.live.server import host_models
from slimsched.serving.scenario.files import shipped_model

PORT, WIDTH, WORKERS, IMAGES, BATCH = (float(word) for word in os.environ["SLIM_MOSEC"].split())
BUCKETS = (16, 32, 64, 128, 256, 512, 1024)


class WholeNetwork:
    """One graph for each batch size, from pinned memory to pinned memory."""

    def __init__(self, width: float, limit: int) -> None:
        torch.set_num_threads(1)  # as our own servers do: small copies are slower on many threads
        device = torch.device("cuda", 0)
        model = shipped_model()
        (hosted,) = host_models([model], device)
        segments = [hosted.segment(key) for key in model.legs(model.spec.path(str(width)))]
        self._stream = torch.cuda.Stream()
        self._graphs = {}
        sizes = [size for size in BUCKETS if size <= max(limit, BUCKETS[0])]
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for size in sizes:
                inputs = torch.zeros((size, *model.spec.inputs[0].shape), dtype=torch.uint8, device=device)

                def run(rows: torch.Tensor = inputs) -> torch.Tensor:
                    found: tuple[torch.Tensor, ...] = (rows,)
                    for segment in segments:
                        found = segment(found)
                    return found[0].argmax(dim=1)

                for _ in range(3):
                    run()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self._stream):
                    outputs = run()
                staging = torch.empty(inputs.shape, dtype=torch.uint8, pin_memory=True)
                self._graphs[size] = graph, inputs, outputs, staging
        self._stream.synchronize()

    def classify(self, bodies: Sequence[bytes], images: int) -> list[bytes]:
        """Run requests of so many images each as one batch; return the int64 classes of each."""
        count = len(bodies) * images
        graph, inputs, outputs, staging = self._graphs[min(size for size in self._graphs if size >= count)]
        flat = staging.view(-1)
        pixels = torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.uint8)
        flat[: pixels.numel()].copy_(pixels)
        with torch.cuda.stream(self._stream):
            inputs[:count].copy_(staging[:count], non_blocking=True)
            graph.replay()
            classes = outputs[:count].cpu().numpy()
        return [classes[at : at + images].tobytes() for at in range(0, count, images)]


class Classify(Worker):
    """Takes raw images and returns raw classes."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self._model = WholeNetwork(WIDTH, int(BATCH))

    def deserialize(self, data: bytes) -> bytes:
        """Return the raw body."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Return the raw answer."""
        return data

    def forward(self, data: list[bytes] | bytes) -> list[bytes] | bytes:
        """Classify a batch, or a single request if batching is off."""
        if isinstance(data, list):
            return self._model.classify(data, int(IMAGES))
        return self._model.classify([data], int(IMAGES))[0]


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "--address=127.0.0.1", f"--port={int(PORT)}", "--timeout=10000"]
    sys.argv += ["--capacity=4096", "--log-level=warning"]
    server = Server()
    requests = max(1, int(BATCH // IMAGES))
    server.append_worker(Classify, num=int(WORKERS), max_batch_size=requests, max_wait_time=1, timeout=60)
    server.run()
