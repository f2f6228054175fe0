"""Batch buckets: the few batch sizes that graphs are captured for; a batch is padded to the next one."""

from bisect import bisect_left

from slimsched.kernel.errors import SlimError

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def buckets_up_to(batch_limit: int) -> tuple[int, ...]:
    """The buckets that batches of at most `batch_limit` need; larger batches run in parts."""
    if batch_limit < 1:
        raise SlimError(f"batch_limit is {batch_limit}; give 1 or more")
    return BUCKETS[: min(bisect_left(BUCKETS, batch_limit) + 1, len(BUCKETS))]


def bucket_for(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size` images; the largest there is when none does."""
    return buckets[min(bisect_left(buckets, size), len(buckets) - 1)]
