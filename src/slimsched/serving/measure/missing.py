"""Measures what is missing before models can be served on a device, in a child process and within seconds.

The gateway asks here. It never imports torch: `quick.py` measures, in a process with the cores, threads and
memory settings of a server. What it finds is kept in the user's cache (`models/cache.py`) and holds until the
model, torch or the share of the device changes.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from signal import Signals
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from slimsched.core.config import Amount, CountOrZero, DataError, SlimError
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.profile import AT_START, ProfileRecord
from slimsched.serving.live.engine import environment
from slimsched.serving.options import Asked
from slimsched.serving.scenario.files import CONFIGS, measured_profiles, read_model

MODULE = "slimsched.serving.measure.quick"
BUDGET_S = {"cpu": 6.0, "cuda": 10.0}
"""How long all models together are measured, without loading them."""

HostPrecision = Literal["", "fp32", "bf16", "fp16"]
AUTO_ORDER: tuple[HostPrecision, ...] = ("", "bf16", "fp16", "fp32")
"""Which precision's profiles are looked for first; those without are of models that choose for themselves."""


class QuickRequest(Struct, frozen=True, kw_only=True):
    """What to measure: models (shipped names or folders), on which device, and for how long."""

    models: list[str]
    host: Host
    device: str
    precision: Asked
    budget_s: Amount


class QuickProgress(Struct, frozen=True, kw_only=True):
    """A line that the measuring process writes; with an `error` it is the last one."""

    done: CountOrZero = 0
    of: CountOrZero = 0
    text: str = ""
    error: str = ""


class MeasuredDevice(NamedTuple):
    """The name of the profiles that all models have, the precision that hosts must have, and the profiles."""

    name: str
    precision: HostPrecision
    records: list[ProfileRecord]


async def measured(
    models: Sequence[str],
    host: Host,
    device: str,
    *,
    progress: Callable[[int, int, str], None],
    precision: Asked = "auto",
    budget_s: float | None = None,
) -> MeasuredDevice:
    """Return the profiles of all models on a device, measuring those that are missing.

    `progress` hears what is done, of how much, and what that is. Cancelling this ends the measurement.
    """
    known = known_device(models, host, device, precision)
    if known is None:
        seconds = BUDGET_S[host.kind] if budget_s is None else budget_s
        request = QuickRequest(
            models=list(models), host=host, device=device, precision=precision, budget_s=seconds
        )
        await _measure(request, progress)
        known = known_device(models, host, device, precision)
    if known is None:
        raise SlimError(f"measuring {device} gave no profile; measure it with slim profile --name {device}")
    return known


def known_device(models: Sequence[str], host: Host, device: str, precision: Asked) -> MeasuredDevice | None:
    """Return the name under which all models have a valid profile; None if one must be measured."""
    order: tuple[HostPrecision, ...] = (precision,) if precision != "auto" else AUTO_ORDER
    for one in order[:1] if host.kind == "cpu" else order:
        name = profile_name(device, one)
        records = [_known_profile(source, name, host, precision) for source in models]
        if None not in records:
            return MeasuredDevice(name, one, [record for record in records if record is not None])
    return None


def profile_name(device: str, precision: str) -> str:
    """Return what a device is called in profiles that were measured at a precision."""
    return f"{device}-{precision}" if precision else device


def circumstances(host: Host) -> dict[str, str]:
    """Return what a measurement holds for: if any of this changes, it is made again."""
    return {
        "torch": version("torch"),
        "threads": str(host.threads),
        "cores": "own" if host.cores else "shared",
        "mps_percentage": str(host.mps_percentage),
    }


def _known_profile(source: str, name: str, host: Host, asked: Asked) -> ProfileRecord | None:
    """Return a model's profile, unless it was measured at a start in other circumstances."""
    try:
        model = read_model(source, rated=False)
    except DataError:  # it has no figures yet
        return None
    records = measured_profiles(name, model, CONFIGS)
    record = next((one for one in records if one.model == model.name), None)
    facts = circumstances(host) | ({"asked": "auto"} if asked == "auto" else {})
    if record is None or not record.source.startswith(AT_START) or facts.items() <= record.device.items():
        return record
    return None


@asynccontextmanager
async def child(*module: str, told: Iterable[bytes], **variables: str) -> AsyncIterator[Process]:
    """Run a module of this package that measures, and tell it something; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *module, stdin=PIPE, stdout=PIPE, env={**os.environ, **variables}
    )
    assert process.stdin is not None
    try:
        with suppress(OSError):  # it has ended before it read all; it says why
            for part in told:
                process.stdin.write(part)
                await process.stdin.drain()
            process.stdin.write_eof()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _measure(request: QuickRequest, progress: Callable[[int, int, str], None]) -> None:
    """Run the measuring process; raise what it says is wrong."""
    async with child(MODULE, told=[msgspec.json.encode(request)], **environment(request.host)) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            said = msgspec.json.decode(line, type=QuickProgress)
            if said.error:
                raise SlimError(said.error)
            progress(said.done, said.of, said.text)
        code = await process.wait()
    if code:
        how = f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise SlimError(
            f"measuring {', '.join(request.models)} on {request.device} {how}; if memory is short, serve "
            "fewer models, else measure one after the other with slim model profile DIR"
        )
