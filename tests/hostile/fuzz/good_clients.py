"""Clients that behave, beside the attack: every answer must be right and in time, and health quick."""

import http.client
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.queues import Queue
from threading import Thread

import numpy as np
from attacker import Board

from slimsched.serving.api.proto import inference_pb2

INFER = "/v2/models/slimresnet/infer"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
IMAGES, CANDIDATES = 8, 64
EVERY_S = 0.05
PATIENCE_S = 20.0
MOST_REFUSED_IN_A_ROW = 5

Seen = dict[str, Counter[str]]
Times = dict[str, list[float]]


class GoodClients:
    """One client of HTTP, one of gRPC, and one that asks for health on a new connection each time."""

    def __init__(self, http_port: int, grpc_port: int, board: Board, late_s: float, health_s: float) -> None:
        self._http, self._grpc = f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}"
        self._board, self._late_s, self._health_s = board, late_s, health_s
        self.seen: Seen = {name: Counter() for name in ("HTTP", "gRPC", "health")}
        self.times_s: Times = {name: [] for name in self.seen}
        self._in_a_row: Counter[str] = Counter()
        self._choose()

    def _choose(self) -> None:
        """Find pictures whose class is clear, and what it is while nobody attacks."""
        images = np.random.default_rng(0).integers(0, 256, (CANDIDATES, 3, 32, 32), dtype=np.uint8)
        connection = http.client.HTTPConnection(self._http, timeout=60)
        connection.request("POST", INFER, _http_body(images, ("logits",)))
        answer = json.loads(connection.getresponse().read())
        logits = np.asarray(answer["outputs"][0]["data"]).reshape(CANDIDATES, -1)
        best = np.sort(logits, axis=1)
        clearest = np.argsort(best[:, -2] - best[:, -1])[:IMAGES]
        self._images, self._classes = images[clearest], [int(one) for one in logits[clearest].argmax(axis=1)]

    def run(self, until_s: float) -> None:
        """Ask until then."""
        asks = {"HTTP": self._http_asks(), "gRPC": self._grpc_asks(), "health": self._ask_health}
        threads = [Thread(target=self._repeat, args=(name, ask, until_s)) for name, ask in asks.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, name: str, ask: Callable[[int], tuple[str, list[int] | None]], until_s: float) -> None:
        number = 0
        while time.monotonic() < until_s:
            if not self._board.is_up.value:
                time.sleep(EVERY_S)
                continue
            began_s, number = time.monotonic(), (number + 1) % IMAGES
            try:
                said, classes = ask(number)
            except Exception as error:
                said, classes = f"{type(error).__name__} {error}"[:100], None
            took_s = time.monotonic() - began_s
            if not self._board.is_up.value:
                continue  # it was started again meanwhile
            self._judge(name, said, classes, number, took_s)
            time.sleep(max(0.0, EVERY_S - took_s))

    def _judge(self, name: str, said: str, classes: list[int] | None, number: int, took_s: float) -> None:
        self.times_s[name].append(took_s)
        self.seen[name][said] += 1
        self._in_a_row[name] = 0 if said in ("200", "OK") else self._in_a_row[name] + 1
        if self._in_a_row[name] == MOST_REFUSED_IN_A_ROW:
            self._board.fault(
                "refused", f"{name}: {MOST_REFUSED_IN_A_ROW} times in a row, the last time {said}"
            )
        if said in ("500", "INTERNAL", "UNKNOWN"):
            self._board.fault("unexpected failure", f"a good client of {name} got {said}")
        if classes is not None and classes != [self._classes[number]]:
            self._board.fault("wrong answer", f"{name}: {classes} instead of {self._classes[number]}")
        if took_s > (self._health_s if name == "health" else self._late_s):
            self._board.fault(
                "slow health" if name == "health" else "late answer", f"{name}: {took_s:.2f} s ({said})"
            )

    def _http_asks(self) -> Callable[[int], tuple[str, list[int] | None]]:
        kept = http.client.HTTPConnection(self._http, timeout=PATIENCE_S)

        def ask(number: int) -> tuple[str, list[int] | None]:
            try:
                body, raw = _raw_body(self._images[number : number + 1])
                kept.request("POST", INFER, body + raw, {"inference-header-content-length": str(len(body))})
                response = kept.getresponse()
                text = response.read()
            except Exception:
                kept.close()
                raise
            if response.status != 200:
                return str(response.status), None
            return "200", np.frombuffer(text[-8:], np.int64).tolist()

        return ask

    def _grpc_asks(self) -> Callable[[int], tuple[str, list[int] | None]]:
        import grpc

        infer = grpc.insecure_channel(
            self._grpc, [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        ).unary_unary(GRPC_INFER)

        def ask(number: int) -> tuple[str, list[int] | None]:
            try:
                answer = inference_pb2.ModelInferResponse.FromString(  # type: ignore[attr-defined]
                    infer(
                        _message(self._images[number : number + 1]), timeout=PATIENCE_S, wait_for_ready=True
                    )
                )
            except grpc.RpcError as error:
                return str(error.code().name), None
            return "OK", np.frombuffer(answer.raw_output_contents[0], np.int64).tolist()

        return ask

    def _ask_health(self, _: int) -> tuple[str, None]:
        connection = http.client.HTTPConnection(self._http, timeout=PATIENCE_S)
        connection.request("GET", "/v2/health/live")
        response = connection.getresponse()
        response.read()
        connection.close()
        return str(response.status), None


def run_good(
    ports: tuple[int, int],
    board: Board,
    bounds_s: tuple[float, float],
    until_s: float,
    results: "Queue[tuple[Seen, Times]]",
) -> None:
    """Be these clients, in a process of its own."""
    os.environ["GRPC_VERBOSITY"] = "NONE"
    clients = GoodClients(*ports, board, *bounds_s)
    clients.run(until_s)
    results.put((clients.seen, clients.times_s))


def _http_body(images: "np.typing.NDArray[np.uint8]", outputs: tuple[str, ...]) -> bytes:
    tensor = {
        "name": "images",
        "shape": list(images.shape),
        "datatype": "UINT8",
        "data": images.ravel().tolist(),
    }
    asked = {
        "inputs": [tensor],
        "outputs": [{"name": name} for name in outputs],
        "parameters": {"plan": "0.25"},
    }
    return json.dumps(asked).encode()


def _raw_body(images: "np.typing.NDArray[np.uint8]") -> tuple[bytes, bytes]:
    raw = images.tobytes()
    tensor = {"name": "images", "shape": list(images.shape), "datatype": "UINT8"}
    asked = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}],
        "outputs": [{"name": "classes", "parameters": {"binary_data": True}}],
        "parameters": {"plan": "0.25"},
    }
    return json.dumps(asked).encode(), raw


def _message(images: "np.typing.NDArray[np.uint8]") -> bytes:
    request = inference_pb2.ModelInferRequest(model_name="slimresnet")  # type: ignore[attr-defined]
    request.inputs.add(name="images", datatype="UINT8", shape=images.shape)
    request.outputs.add(name="classes")
    request.parameters["plan"].string_param = "0.25"
    request.raw_input_contents.append(images.tobytes())
    return bytes(request.SerializeToString())
