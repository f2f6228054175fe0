"""A chaos run: every request is answered exactly once, or refused with a reason. CI runs five minutes."""

import asyncio
import os
from collections.abc import Callable

import pytest

from hostile.chaos import run_chaos
from served import Served

LATE_S = 0.25  # 50 ms are promised; the rest is for a busy machine that also runs the clients


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_every_request_has_one_end_whatever_happens_to_servers(own_server: Callable[..., Served]) -> None:
    served = own_server()
    count = asyncio.run(run_chaos(served, float(os.environ.get("SLIM_CHAOS_S", "45")), seed=1))
    print(count.text())
    assert len(count.outcomes) > 50
    assert sum(count.faults.values()) >= 3
    assert not count.lost, count.text()
    assert not count.silent, count.text()
    assert not count.hung, count.text()
    assert not count.late(LATE_S), count.text()
    assert {one.status for one in count.stayed} <= {200, 429, 503, 504}
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()
