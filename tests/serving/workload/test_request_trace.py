import bz2
import gzip
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from slimsched.core.config import DataError
from slimsched.serving.workload.arrivals import read_request_trace

RNG = np.random.default_rng


def test_request_times_keep_the_pattern_of_their_gaps_at_any_rate(tmp_path: Path) -> None:
    gaps = RNG(0).exponential(size=4000) ** 2  # burstier than Poisson
    path = tmp_path / "times.csv"
    path.write_text("arrival_s\n" + "\n".join(map(str, np.cumsum(gaps))))
    times = read_request_trace(path).rescaled(500.0, 20.0, RNG(1))
    assert len(times) == pytest.approx(500 * 20, rel=0.1)
    scaled = np.diff(times)
    assert scaled.std() / scaled.mean() == pytest.approx(gaps.std() / gaps.mean(), rel=0.15)


def test_dates_with_seven_digits_after_the_second_are_read(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv.gz"
    rows = ["TIMESTAMP,Tokens", "2023-11-16 18:15:46.6805900,1", "2023-11-16 18:15:50.9951690,2"]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    times = read_request_trace(path).times_s
    assert times is not None
    assert times[1] == pytest.approx(4.314579, abs=1e-6)


def test_counts_per_second_are_scaled_to_the_rate_and_silences_cut(tmp_path: Path) -> None:
    counts = [10, 30] * 100 + [0] * 1500 + [10, 30] * 100
    path = tmp_path / "counts.txt.bz2"
    path.write_bytes(bz2.compress(" ".join(map(str, counts)).encode()))
    trace = read_request_trace(path)
    assert trace.counts is not None
    assert len(trace.counts) == 400
    times = trace.rescaled(1000.0, 60.0, RNG(0))
    assert len(times) == pytest.approx(60_000, rel=0.05)


def test_counts_per_minute_are_summed_over_functions_even_inside_a_tar(tmp_path: Path) -> None:
    inner = tmp_path / "functions.csv"
    inner.write_text("HashFunction,minute_1,minute_2,minute_3\na,1,2,3\nb,10,20,30\n")
    path = tmp_path / "functions.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(inner, inner.name)
    trace = read_request_trace(path)
    assert trace.counts is not None
    assert trace.counts.tolist() == [11, 22, 33]
    assert trace.interval_s == 60


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hello world", "is not an arrival trace"),
        ("arrival_s\n1.0\n", "fewer than two"),
        ("count\n-1\n", "counts must be from 0"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_the_accepted_formats(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=says):
        read_request_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no arrival trace at .*nowhere\.csv"):
        read_request_trace(tmp_path / "nowhere.csv")


@pytest.mark.data
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with real traces")
def test_the_real_traces_are_read() -> None:
    folder = Path(os.environ["SLIM_DATA"]) / "arrivals"
    llm = read_request_trace(folder / "azure_llm_2023_conv.csv.gz")
    functions = read_request_trace(folder / "azure_functions_2019_1000fn_invocations_per_min.csv.gz")
    twitter = read_request_trace(folder / "twitter_2021-08_req_per_s.tbz2")
    assert llm.times_s is not None
    assert len(llm.times_s) == 19_366
    assert functions.counts is not None
    assert len(functions.counts) == 1440
    assert twitter.counts is not None
    assert 1_600_000 < len(twitter.counts) < 1_899_061, "the silent half hours are cut"
    for trace in (llm, functions, twitter):
        assert len(trace.rescaled(2000.0, 10.0, RNG(0))) == pytest.approx(20_000, rel=0.35)
