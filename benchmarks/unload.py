"""How much device memory loading an instance takes, and that unloading gives all of it back.

    python benchmarks/unload.py [--batch 256] [--json]

An instance is its weights, unless another instance holds them, its buffers and its graphs. With nothing
loaded the weights are on the host. Reads the free memory from the driver (`mem_get_info`) before an instance
is loaded, while it is loaded and after it is unloaded, and shows beside it what the executor accounts for. A
CPU has no driver to ask; there a test compares the accounted bytes.
"""

import argparse
import json
from time import perf_counter

import torch

from slimsched.serving.domain.cluster import Instance
from slimsched.serving.live.cuda import CudaExecutor, cuda_device
from slimsched.serving.live.server import host_models
from slimsched.serving.scenario.files import shipped_model

MODEL = shipped_model()


def free_bytes() -> int:
    """Return the free device memory that the driver reports."""
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def measure(executor: CudaExecutor) -> list[dict[str, float]]:
    """Measure one row for each segment and width."""
    rows = []
    for segment, choice in MODEL.spec.places():
        slot = Instance(id=1, segment=segment, choice=choice, memory_bytes=0)
        executor.load(slot)
        executor.unload(1)
        before = free_bytes()
        began_s = perf_counter()
        accounted = executor.load(slot)
        loaded_s = perf_counter()
        during, weights = free_bytes(), executor.weight_bytes
        executor.unload(1)
        after = free_bytes()
        rows.append(
            {
                "segment": segment,
                "width": float(MODEL.spec.segments[segment][choice]),
                "accounted": accounted,
                "weights": weights,
                "taken": before - during,
                "given_back": after - during,
                "missing": before - after,
                "load_s": loaded_s - began_s,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    executor = CudaExecutor(host_models([MODEL], cuda_device()), batch_limit=given.batch)
    rows = measure(executor)
    if given.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))
        return
    print(
        f"{torch.cuda.get_device_name()}, graphs up to batch {given.batch}; weights on the device with "
        f"nothing loaded: {executor.weight_bytes / 1e6:.0f} MB"
    )
    print("segment  width  weights MB  accounted MB  taken MB  given back MB  missing  load ms")
    for row in rows:
        sizes = [row[name] / 1e6 for name in ("weights", "accounted", "taken", "given_back")]
        print(
            f"{row['segment']:7g}{row['width']:7g}{sizes[0]:12.1f}{sizes[1]:14.1f}{sizes[2]:10.1f}{sizes[3]:15.1f}"
            f"{row['missing']:9.0f}{1000 * row['load_s']:9.1f}"
        )


if __name__ == "__main__":
    main()
