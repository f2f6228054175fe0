"""The lag of an event loop."""

import asyncio
import time

from slimsched.serving.live.wire import PERIOD_S, LoopLag


def test_it_is_the_time_for_which_the_loop_was_held_up() -> None:
    async def main() -> tuple[float, float]:
        lag = LoopLag()
        await asyncio.sleep(0)
        time.sleep(0.3)
        await asyncio.sleep(0)  # the timer comes after this,
        await asyncio.sleep(0)  # and before this
        held_up = lag.seconds
        for _ in range(200):  # a busy machine may be late again by itself
            await asyncio.sleep(PERIOD_S)
            if lag.seconds < 0.1:
                break
        lag.stop()
        return held_up, lag.seconds

    held_up, after = asyncio.run(main())
    assert held_up >= 0.3 - 2 * PERIOD_S
    assert after < 0.1
