"""The options of Algorithm 1, and our additions."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.quantity import Amount, Bytes, Count, CountOrZero, Name, Seconds, Whole


class SchedulerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults follow the paper; the comments give its symbols."""

    batch_limit: CountOrZero = 16  # B_max; 0, in a scenario: what suits the profile
    batch_limit_s: Seconds = 0.0  # about the longest time a batch may take, by profile; 0: no limit
    vram_cap_bytes: Bytes = 8 * 2**30  # M_max
    instance_limit: Whole = 0  # most instances at once; 0: as many as memory holds, with CUDA 64
    utilization_block: Amount = 0.95  # U_blk
    idle_unload_s: Seconds = 5.0  # t_idle
    scale_trigger: Whole = 16  # Q_th
    scale_cap: Count = 2  # N_new
    resident: tuple[Name, ...] = ()  # choices that stay loaded in every segment, or 'widest'
    wider_instance: Literal["slice", "full"] = "slice"  # what an instance wider than the request runs
    order: Literal["fifo", "deadline"] = "fifo"  # deadline: per-key queues, most urgent first
    merge_upward: bool = False  # fill a batch with narrower requests of an otherwise equal key
    early_drop: bool = False  # drop blocks that can no longer meet their deadline
    priorities: bool = False  # higher priority first
    reclaim: bool = False  # unload the longest idle instance when VRAM blocks the head
