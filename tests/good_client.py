"""A client that behaves, while others do not: how many of its calls failed, and how long they took."""

import http.client
import json
import threading
import time
from types import TracebackType
from typing import Self

import grpc
import numpy as np

import raw_http2 as h2
from served import Served
from slimsched.serving.api.proto import inference_pb2


def request() -> bytes:
    """Return a call with one image, as gRPC sends it."""
    message = inference_pb2.ModelInferRequest(model_name="slimresnet")  # type: ignore[attr-defined]
    message.inputs.add(name="images", datatype="UINT8", shape=[1, 3, 32, 32])
    message.raw_input_contents.append(np.zeros(3072, np.uint8).tobytes())
    return bytes(message.SerializeToString())


def http_head() -> bytes:
    """Return the JSON before the bytes of one image, as HTTP sends it."""
    image = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "UINT8"}
    image["parameters"] = {"binary_data_size": 3072}  # type: ignore[assignment]
    return json.dumps({"inputs": [image], "outputs": [{"name": "classes"}]}).encode()


class GoodClient:
    """Asks in a closed loop, with one protocol or the other, from before a block until after it."""

    def __init__(self, served: Served, protocol: str, *, least: int) -> None:
        self._served, self._least = served, least
        self._ask_forever = self._ask_grpc if protocol == "grpc" else self._ask_http
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask_forever)
        self.answers, self.slowest_s = 0, 0.0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ask on until it had enough answers."""
        self._is_over.set()
        self._thread.join()
        if error is None:
            assert not self.failures, f"{len(self.failures)} of its calls failed: {self.failures[:3]}"
            assert self.answers >= self._least

    def _goes_on(self) -> bool:
        return not self.failures and (self.answers < self._least or not self._is_over.is_set())

    def _note(self, began_s: float, failure: str) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        if failure:
            self.failures.append(failure)
        else:
            self.answers += 1

    def _ask_grpc(self) -> None:
        raw = request()
        with grpc.insecure_channel(self._served.grpc) as channel:
            call = channel.unary_unary(h2.INFER)
            while self._goes_on():
                began_s = time.monotonic()
                try:
                    self._note(began_s, "" if call(raw, timeout=20) else "an empty answer")
                except grpc.RpcError as error:
                    self._note(began_s, f"{error.code()} {error.details()}")  # type: ignore[attr-defined]

    def _ask_http(self) -> None:
        head = http_head()
        headers = {"inference-header-content-length": str(len(head))}
        connection = http.client.HTTPConnection(self._served.http, timeout=20)
        while self._goes_on():
            began_s = time.monotonic()
            try:
                connection.request("POST", "/v2/models/slimresnet/infer", head + bytes(3072), headers)
                response = connection.getresponse()
                text = response.read()
                self._note(began_s, "" if response.status == 200 else f"{response.status} {text!r}")
            except (OSError, http.client.HTTPException) as error:
                self._note(began_s, f"{type(error).__name__} {error}")
        connection.close()
