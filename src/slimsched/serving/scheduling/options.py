"""The knobs of Algorithm 1, and what we add to it."""

from typing import Literal

from msgspec import Struct


class SchedulerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are the paper's plain rule; the paper's symbols stand behind the names."""

    batch_limit: int = 16  # B_max
    batch_limit_s: float = 0.0  # a batch takes in about what it can run in this time by profile; 0: all
    vram_cap_bytes: int = 8 * 2**30  # M_max
    utilization_block: float = 0.95  # U_blk
    idle_unload_s: float = 5.0  # t_idle
    scale_trigger: int = 16  # Q_th
    scale_cap: int = 2  # N_new
    resident: tuple[str, ...] = ()  # choices loaded in every segment from the start and kept; or widest
    wider_instance: Literal["slice", "full"] = "slice"  # what an instance wider than asked runs
    order: Literal["fifo", "deadline"] = "fifo"  # deadline: per-key queues, the most urgent served first
    merge_upward: bool = False  # narrower requests that otherwise have the same key fill a wider batch
    early_drop: bool = False  # give up what can no longer meet its deadline
    priorities: bool = False  # higher priority first
    reclaim: bool = False  # unload the longest idle instance when VRAM blocks the head
