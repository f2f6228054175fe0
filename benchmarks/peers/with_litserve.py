"""Our network behind LitServe: FastAPI in front, worker processes behind a queue."""

from typing import Annotated

import litserve
from fastapi import Depends, Request, Response
from fixed_width import FixedWidth
from setting import read_setting


async def raw_body(request: Request) -> bytes:
    """The body as it is."""
    return await request.body()


class Classify(litserve.LitAPI):
    """Raw bytes both ways."""

    def setup(self, device: str) -> None:
        """In each worker."""
        setting = read_setting()
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> bytes:
        """The body as it is."""
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """The network joins them itself."""
        return inputs

    def predict(self, x: list[bytes] | bytes) -> list[bytes] | bytes:
        """One batch, or one request where batches have one."""
        return self._model.classify(x) if isinstance(x, list) else self._model.classify([x])[0]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        """As the network gives them."""
        return output

    def encode_response(self, output: bytes) -> Response:
        """The answer as it is."""
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
