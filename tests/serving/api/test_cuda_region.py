"""Regions of CUDA memory, without a server and without a GPU: opened once, checked, bounded."""

import asyncio
import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cuda_stand_in import CudaClient, build
from slimsched.serving.api.cuda_driver import SETTING, CudaDriver, NoCudaError
from slimsched.serving.api.cuda_region import CudaEntry, CudaRegistration, RawHandle
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import BadRequest, NotFound, NotOffered, Unavailable
from slimsched.serving.api.shared_memory import Loan, SharedMemory
from slimsched.serving.api.shared_memory_control import Registration, SharedMemoryControl
from slimsched.serving.api.shared_region import Place, RegionPart, write_parts


class Desk:
    """What lends memory to calls."""

    arena = None

    def __init__(self) -> None:
        self.ledger, self.limits = Ledger(), Limits(held_bytes=2**20)
        self.memory = SharedMemory(self.ledger, is_allowed=True)
        self.control = SharedMemoryControl(self.memory, lambda: self.limits)

    def register(self, name: str, handle: bytes, size: int, device: int = 0) -> None:
        raw = RawHandle(base64.b64encode(handle).decode())
        given = CudaRegistration(raw_handle=raw, device_id=device, byte_size=size)
        asyncio.run(self.control.register(name, given))

    def unregister(self, name: str = "") -> None:
        asyncio.run(self.control.unregister(name, CudaEntry))

    def part(self, size: int, offset: int = 0, region: str = "in") -> RegionPart:
        place = Place(shared_memory_region=region, shared_memory_offset=offset, shared_memory_byte_size=size)
        return self.memory.find(place, "input 'x'")

    def read(self, part: RegionPart) -> bytes:
        with Loan(self) as loan:
            return bytes(loan.read(part))


class Gpu:
    """A client with 100 bytes of memory that hold 0 to 99."""

    def __init__(self, library: str) -> None:
        self.client = CudaClient(library)
        self.address = self.client.allocate(100)
        self.client.write(self.address, bytes(range(100)))
        self.handle = self.client.handle(self.address)
        self.path = f"/dev/shm{self.handle.rstrip(bytes(1)).decode()}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def gpu(built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    library = tmp_path / "libcuda.so"  # a copy has a state of its own
    library.write_bytes(Path(built).read_bytes())
    monkeypatch.setenv(SETTING, str(library))
    one = Gpu(built)
    yield one
    one.client.free(one.address)


def mapped(gpu: Gpu) -> int:
    """Count how often the server has the memory open, besides the client."""
    return Path("/proc/self/maps").read_text().count(gpu.path) - 1


def test_a_part_is_copied_both_ways(gpu: Gpu) -> None:
    desk = Desk()
    desk.register("in", gpu.handle, 100)
    with Loan(desk) as loan:
        copy = loan.read(desk.part(5, offset=20))
        write_parts([(desk.part(3, offset=21), b"abc")])
        assert bytes(copy) == bytes(range(20, 25)), "its client cannot change it any more"
    assert gpu.client.read(gpu.address + 20, 5) == b"\x14abc\x18"
    assert desk.ledger.held_bytes == 0
    with pytest.raises(BadRequest, match="5 bytes at 96 are beyond the end of region 'in'"):
        desk.part(5, offset=96)


def test_the_same_memory_is_opened_once_and_closed_with_the_last_region(gpu: Gpu) -> None:
    desk = Desk()
    desk.register("in", gpu.handle, 100)
    desk.register("part", gpu.handle, 50)  # the library refuses to open it twice
    assert mapped(gpu) == 1
    part = desk.part(4, region="part")
    desk.unregister("in")
    assert desk.read(desk.part(2, region="part")) == bytes([0, 1])
    desk.unregister()
    assert mapped(gpu) == 1, "a call under way still needs it"
    write_parts([(part, b"late")])
    assert gpu.client.read(gpu.address, 4) == b"late"
    del part
    assert mapped(gpu) == 0
    desk.register("in", gpu.handle, 100)
    assert mapped(gpu) == 1


def test_what_is_wrong_with_a_registration_is_said(gpu: Gpu) -> None:
    desk = Desk()
    for handle, size, device, kind, says in (
        (gpu.handle[:63], 100, 0, BadRequest, "raw_handle has 63 bytes, a CUDA IPC handle has 64"),
        (b"", 100, 0, BadRequest, "raw_handle has 0 bytes"),
        (
            os.urandom(64),
            100,
            0,
            BadRequest,
            "memory of region 'in' cannot be opened: cuIpcOpenMemHandle says",
        ),
        (bytes(64), 100, 0, BadRequest, "cannot be opened"),
        (gpu.handle, 101, 0, BadRequest, "has 100 bytes, but byte_size is 101; give less, or allocate more"),
        (gpu.handle, 100, 2, BadRequest, "the server has 2 CUDA device.s., numbered from 0 to 1"),
        (gpu.handle, 100, 1, Unavailable, "CUDA device 1 cannot be used: .* system shared memory instead"),
    ):
        with pytest.raises(kind, match=says):
            desk.register("in", handle, size, device)
    given = CudaRegistration(raw_handle=RawHandle("?"), device_id=0, byte_size=1)
    with pytest.raises(BadRequest, match="raw_handle is not base64"):
        asyncio.run(desk.control.register("in", given))
    assert desk.control.entries == []
    assert mapped(gpu) == 0


def test_line_breaks_in_base64_are_as_good_as_none(gpu: Gpu) -> None:
    text = base64.encodebytes(gpu.handle).decode()  # Triton's C++ client breaks lines too
    assert "\n" in text.strip()
    given = CudaRegistration(raw_handle=RawHandle(text), device_id=0, byte_size=1)
    assert given.handle() == gpu.handle


def test_both_kinds_share_names_and_limits(gpu: Gpu) -> None:
    desk = Desk()
    desk.limits = replace(desk.limits, shared_regions=2, shared_bytes=150)
    own = Registration(key=gpu.path.removeprefix("/dev/shm/"), byte_size=60)
    asyncio.run(desk.control.register("one", own))
    with pytest.raises(BadRequest, match="shared memory region 'one' is registered already"):
        desk.register("one", gpu.handle, 10)
    with pytest.raises(BadRequest, match="would have 151 bytes, 150 are the limit"):
        desk.register("two", gpu.handle, 91)
    desk.register("two", gpu.handle, 90)
    with pytest.raises(BadRequest, match="2 shared memory regions are registered, which is the limit"):
        desk.register("three", gpu.handle, 1)
    assert desk.control.status("two", CudaEntry) == [{"name": "two", "device_id": 0, "byte_size": 90}]
    assert [one["name"] for one in desk.control.status()] == ["one"]
    with pytest.raises(NotFound, match="region 'two' is CUDA shared memory; ask for its status there"):
        desk.control.status("two")
    with pytest.raises(NotFound, match="region 'one' is system shared memory; ask for its status there"):
        desk.control.status("one", CudaEntry)
    asyncio.run(desk.control.unregister("two"))
    asyncio.run(desk.control.unregister())
    assert [one.name for one in desk.control.entries] == ["two"], "only regions of that kind are forgotten"
    desk.unregister()
    assert desk.control.entries == []


def test_two_registrations_at_once_cannot_have_one_name(gpu: Gpu) -> None:
    desk = Desk()
    raw = RawHandle(base64.b64encode(gpu.handle).decode())
    given = CudaRegistration(raw_handle=raw, device_id=0, byte_size=10)

    async def both() -> list[BaseException | None]:
        tries = (desk.control.register("in", given) for _ in range(2))
        return await asyncio.gather(*tries, return_exceptions=True)

    done = asyncio.run(both())
    assert done.count(None) == 1
    assert "is registered already" in str(next(one for one in done if one is not None))


def test_memory_that_cannot_be_copied_any_more_costs_the_call_only(gpu: Gpu) -> None:
    desk = Desk()
    desk.register("in", gpu.handle, 100)
    os.truncate(gpu.path, 0)
    with pytest.raises(BadRequest, match="region 'in' cannot be read: cuMemcpyDtoH says"):
        desk.read(desk.part(4))
    with pytest.raises(BadRequest, match="memory of region 'in' cannot be written"):
        write_parts([(desk.part(4), b"abcd")])
    assert desk.ledger.held_bytes == 0
    os.truncate(gpu.path, 100)
    assert desk.read(desk.part(1)) == bytes(1)


def test_an_output_on_a_gpu_fails_before_another_is_written(gpu: Gpu, tmp_path: Path) -> None:
    desk, own = Desk(), Path("/dev/shm") / f"test_{os.getpid()}"
    own.write_bytes(bytes(10))
    try:
        asyncio.run(desk.control.register("own", Registration(key=own.name, byte_size=10)))
        desk.register("gpu", gpu.handle, 100)
        os.truncate(gpu.path, 0)
        with pytest.raises(BadRequest, match="cannot be written"):
            write_parts([(desk.part(3, region="own"), b"abc"), (desk.part(3, region="gpu"), b"abc")])
        assert own.read_bytes() == bytes(10)
    finally:
        own.unlink()


def test_a_broken_context_ends_cuda_memory_in_this_process_and_nothing_else(gpu: Gpu) -> None:
    desk, front = Desk(), Desk()
    desk.register("in", gpu.handle, 100)
    entries, part = desk.control.entries, desk.part(4)
    os.truncate(gpu.path, 1)
    with pytest.raises(Unavailable, match=r"works no more in this process: .*illegal memory access"):
        desk.read(part)
    os.truncate(gpu.path, 100)
    with pytest.raises(Unavailable, match="works no more"):
        write_parts([(part, b"abcd")])
    with pytest.raises(Unavailable, match="use system shared memory, or restart the server"):
        desk.register("again", gpu.handle, 100)
    assert desk.control.status("", CudaEntry) == [], "it is of no use any more"
    own = Registration(key=gpu.path.removeprefix("/dev/shm/"), byte_size=60)
    asyncio.run(desk.control.register("own", own))
    assert desk.read(desk.part(1, region="own")) == bytes(1)
    front.memory.follow(entries)  # it shares the library, whose state is broken
    with pytest.raises(Unavailable, match="region 'in' is registered, but a front process cannot use it"):
        front.part(1)


def test_another_process_opens_what_the_gateway_has(gpu: Gpu) -> None:
    desk, front = Desk(), Desk()
    desk.register("in", gpu.handle, 100)
    entries = desk.control.entries
    assert not front.memory.is_prepared(entries)
    desk.unregister()  # here both are one process, and the library opens memory once in each
    front.memory.prepare(entries)
    assert front.memory.is_prepared(entries)
    front.memory.follow(entries)
    region = front.memory.regions["in"]
    assert front.read(front.part(3, offset=7)) == bytes([7, 8, 9])
    front.memory.follow(entries)
    assert front.memory.regions["in"] is region, "what it knows is not opened again"
    front.memory.follow([])
    del region
    assert mapped(gpu) == 0


@pytest.mark.parametrize(("library", "devices"), [("/none/libcuda.so.1", "1"), ("", "0"), ("", "-1")])
def test_without_cuda_a_client_is_told_to_use_system_memory(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, library: str, devices: str
) -> None:
    if library:
        monkeypatch.setenv(SETTING, library)
    monkeypatch.setenv("FAKE_CUDA_DEVICES", devices)
    with pytest.raises(NoCudaError):
        CudaDriver().load()
    desk = Desk()
    with pytest.raises(NotOffered, match=r"is not offered: .*; register system shared memory instead"):
        desk.register("in", gpu.handle, 100)
    assert desk.control.status("", CudaEntry) == []
    desk.unregister("in")
    desk.unregister()
