"""What the clients of PyTriton and KServe are told; `scripts/other-tools` makes an environment that has them.

    python tests/other_clients.py pytriton|kserve HTTP_ADDRESS GRPC_ADDRESS IMAGES.npy

prints the classes that each of them got, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np


def pytriton(http: str, grpc: str, images: Any) -> dict[str, list[int]]:
    """Ask with the synchronous client, the one with futures, and the one for asyncio."""
    from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient

    async def ask(url: str) -> Any:
        async with AsyncioModelClient(url, "slimresnet") as client:
            return await client.infer_batch(images=images)

    said = {}
    for url in (f"http://{http}", f"grpc://{grpc}"):
        with (
            ModelClient(url, "slimresnet", model_version="1") as one,
            FuturesModelClient(url, "slimresnet") as more,
        ):
            assert one.model_config.max_batch_size == 64
            said[f"{url} batch"] = one.infer_batch(images, parameters={"plan": "0.5"})
            said[f"{url} sample"] = one.infer_sample(images=images[0], parameters={"plan": "0.5"})
            said[f"{url} futures"] = more.infer_batch(images=images, parameters={"plan": "0.5"}).result()
        said[f"{url} asyncio"] = asyncio.run(ask(url))
    return {name: np.asarray(answer["classes"]).reshape(-1).tolist() for name, answer in said.items()}


def kserve(http: str, grpc: str, images: Any) -> dict[str, list[int]]:
    """Ask over REST with both forms of tensors, and over gRPC."""
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

    def request(binary: bool) -> Any:
        tensor = InferInput("images", list(images.shape), "UINT8")
        tensor.set_data_from_numpy(images, binary_data=binary)
        return InferRequest("slimresnet", [tensor], parameters={"plan": "0.5"})

    async def ask() -> dict[str, Any]:
        rest, remote, url = (
            InferenceRESTClient(RESTConfig(protocol="v2")),
            InferenceGRPCClient(grpc),
            f"http://{http}",
        )
        assert await rest.is_server_live(url)
        assert await rest.is_server_ready(url)
        assert await rest.is_model_ready(url, "slimresnet")
        assert await remote.is_server_live()
        assert await remote.is_server_ready()
        assert await remote.is_model_ready("slimresnet")
        answers = {
            "REST, binary": await rest.infer(url, request(binary=True), model_name="slimresnet"),
            "REST, JSON": await rest.infer(url, request(binary=False), model_name="slimresnet"),
            "gRPC": await remote.infer(request(binary=True)),
        }
        return {name: {one.name: one.as_numpy() for one in got.outputs} for name, got in answers.items()}

    return {name: np.asarray(answer["classes"]).tolist() for name, answer in asyncio.run(ask()).items()}


if __name__ == "__main__":
    which, http_address, grpc_address, path = sys.argv[1:]
    print(
        json.dumps({"pytriton": pytriton, "kserve": kserve}[which](http_address, grpc_address, np.load(path)))
    )
