"""Batch buckets: the batch sizes that graphs are captured for. A batch is padded to the next bucket."""

from bisect import bisect_left

from slimsched.core.config import SlimError

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def buckets_up_to(batch_limit: int) -> tuple[int, ...]:
    """Return the buckets for batches of at most `batch_limit`; larger batches run in parts."""
    if batch_limit < 1:
        raise SlimError(f"batch_limit is {batch_limit}; give 1 or more")
    return BUCKETS[: min(bisect_left(BUCKETS, batch_limit) + 1, len(BUCKETS))]


def bucket_for(size: int, buckets: tuple[int, ...]) -> int:
    """Return the smallest bucket that holds `size` examples, or the largest bucket if none does."""
    return buckets[min(bisect_left(buckets, size), len(buckets) - 1)]
