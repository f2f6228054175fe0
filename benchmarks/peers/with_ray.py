"""Our model behind Ray Serve: an HTTP proxy, and replicas as actors with `serve.batch`."""

import asyncio
import signal
import threading
import time

import ray
from fixed_width import FixedWidth
from ray import serve
from setting import read_setting
from starlette.requests import Request
from starlette.responses import Response

setting = read_setting()


@serve.deployment(
    num_replicas=setting.workers,
    max_ongoing_requests=max(2, setting.queue // setting.workers),
    max_queued_requests=max(
        setting.workers, setting.queue // 4
    ),  # includes requests on their way to a replica
    ray_actor_options={"num_cpus": 0.5, "runtime_env": {"env_vars": setting.environment()}},
)
class Classify:
    """Takes raw images and returns raw classes; skips requests whose answer would be late."""

    def __init__(self) -> None:
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    @serve.batch(max_batch_size=setting.batch, batch_wait_timeout_s=0.005)
    async def _batch(self, asked: list[tuple[float, bytes]]) -> list[bytes]:
        now_s = time.monotonic()
        good = [n for n, (arrived_s, _) in enumerate(asked) if now_s - arrived_s <= setting.patience_s]
        answers = [b""] * len(asked)
        if good:
            bodies = [asked[n][1] for n in good]
            classified = await asyncio.to_thread(self._model.classify, bodies)
            for number, answer in zip(good, classified, strict=True):
                answers[number] = answer
        return answers

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        answer = await self._batch((time.monotonic(), await request.body()))
        return Response(answer, status_code=200 if answer else 504, media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": setting.port, "access_log": False},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    serve.run(Classify.bind(), route_prefix="/classify")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()
    ray.shutdown()
