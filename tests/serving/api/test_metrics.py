"""The metrics page, parsed as Prometheus does, while requests are served."""

import http.client
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from served import Served
from slimsched.serving.api.client.client import Client, ServerRefusedError
from slimsched.serving.api.service import Histogram, histogram, sample

Images = NDArray[np.uint8]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(served: Served, token: str = "") -> Samples:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("GET", "/metrics", headers={"authorization": f"Bearer {token}"})
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("content-type", "").startswith("text/plain; version=0.0.4")
    samples: Samples = {}
    for family in text_string_to_metric_families(response.read().decode()):
        assert family.documentation
        for one in family.samples:
            key = (one.name, tuple(sorted(one.labels.items())))
            assert key not in samples, f"{key} twice"
            samples[key] = one.value
    return samples


def total(samples: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (n, given), value in samples.items() if n == name and wanted <= set(given))


def test_the_same_page_as_open_metrics(served: Served) -> None:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    accepted = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5"
    connection.request("GET", "/metrics", headers={"accept": accepted})
    response = connection.getresponse()
    text = response.read().decode()
    assert response.getheader("content-type") == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = {family.name: family for family in open_families(text)}
    assert families["slim_images_arrived"].type == "counter"
    names = {one.name for family in families.values() for one in family.samples}
    assert names <= {name for name, _ in scrape(served)}


@pytest.fixture(scope="module")
def loaded(served: Served, images: Images) -> tuple[Samples, Samples]:
    """Return the page before and after six clients sent ten requests of eight images; two were refused."""
    before = scrape(served)

    def work() -> None:
        with Client(f"http://{served.http}") as client:
            for _ in range(10):
                client.classify(images, deadline_ms=60_000)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        scrape(served)
    with Client(f"http://{served.http}") as client:
        for _ in range(2):
            with pytest.raises(ServerRefusedError):
                client.classify(images, plan="0.6")
    return before, scrape(served)


def test_requests_and_images_are_counted_once(loaded: tuple[Samples, Samples]) -> None:
    def grew(name: str, **labels: str) -> float:
        return total(loaded[1], name, **labels) - total(loaded[0], name, **labels)

    assert grew("slim_responses_total", protocol="http", kind="infer", code="200") == 60
    assert grew("slim_responses_total", protocol="http", kind="infer", code="400") == 2
    assert grew("slim_images_arrived_total") == grew("slim_images_total", outcome="answered") == 480
    assert grew("slim_offered_images_total", outcome="in_time") == 480
    assert 0 < grew("slim_images_correct_expected_total") < 480
    for name in ("latency", "queue", "compute", "network"):
        assert grew(f"slim_image_{name}_seconds_count") == 480
    assert grew("slim_segment_images_total", model="slimresnet") == 4 * 480
    by_choice = [grew("slim_segment_images_total", choice=name) for name in ("0.25", "0.5", "0.75", "1.0")]
    assert sum(by_choice) == 4 * 480
    assert grew("slim_batch_images_sum") == 4 * 480
    assert grew("slim_infer_seconds_count", protocol="http") == 62


def test_every_server_has_its_gauges(loaded: tuple[Samples, Samples]) -> None:
    page = loaded[1]
    for server in ("one", "two"):
        assert total(page, "slim_server_up", server=server) == 1
        assert total(page, "slim_server_memory_bytes", server=server) > 0
        assert total(page, "slim_energy_joules_total", server=server) > 0
    sources = {dict(labels)["source"] for (name, labels) in page if name == "slim_energy_joules_total"}
    assert "" not in sources
    assert total(page, "slim_images_in_system") == 0
    assert total(page, "slim_build_info") == 1


def test_the_page_asks_for_the_token(own_server: Callable[..., Served]) -> None:
    served = own_server("--token", "open-sesame")
    connection = http.client.HTTPConnection(served.http, timeout=60)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 401
    assert total(scrape(served, "open-sesame"), "slim_responses_total", code="401") == 1


def test_buckets_are_cumulative_and_labels_escaped() -> None:
    buckets = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        buckets.observe(value)
    lines = histogram("x_seconds", "About x.", [({}, buckets)])
    assert lines[2:] == [
        'x_seconds_bucket{le="1"} 2',
        'x_seconds_bucket{le="2"} 3',
        'x_seconds_bucket{le="+Inf"} 4',
        "x_seconds_sum 12",
        "x_seconds_count 4",
    ]
    assert sample("x", float("nan"), {"why": 'a "b"\n'}) == 'x{why="a \\"b\\"\\n"} NaN'
