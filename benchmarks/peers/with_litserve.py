"""Our model behind LitServe: FastAPI in front, worker processes behind a queue."""

from typing import Annotated

import litserve
from fastapi import Depends, Request, Response
from fixed_width import FixedWidth
from setting import read_setting


async def raw_body(request: Request) -> bytes:
    """Return the raw body."""
    return await request.body()


class Classify(litserve.LitAPI):
    """Takes raw images and returns raw classes."""

    def setup(self, device: str) -> None:
        """Load the model in each worker."""
        setting = read_setting()
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> bytes:
        """Return the raw body."""
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Return the requests as they are; the model joins them."""
        return inputs

    def predict(self, x: list[bytes] | bytes) -> list[bytes] | bytes:
        """Classify a batch, or a single request if batching is off."""
        return self._model.classify(x) if isinstance(x, list) else self._model.classify([x])[0]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        """Return the answers as they are; the model splits them."""
        return output

    def encode_response(self, output: bytes) -> Response:
        """Return the raw answer."""
        return Response(content=output, media_type="application/octet-stream")


if __name__ == "__main__":
    setting = read_setting()
    api = Classify(max_batch_size=setting.batch, batch_timeout=0.005 if setting.batch > 1 else 0.0)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        devices=1,
        workers_per_device=setting.workers,
        timeout=setting.patience_s,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=setting.port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
