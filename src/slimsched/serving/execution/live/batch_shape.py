"""Batch shapes: the batch sizes that a CPU really runs. A batch is padded to the next of them.

oneDNN makes the kernels of a convolution anew for every batch size. For a whole plan that takes several
milliseconds, as long as a few examples. Batches of all sizes come in service, so most would pay for it.
"""

FINEST = 16
"""Batches of up to this number of examples run as they are."""


def shape_for(size: int) -> int:
    """Return the size to run a batch at: at most an eighth more than it has.

    Up to 16 examples as they are, then multiples of 2 up to 32, of 4 up to 64, and so on.
    """
    if size <= FINEST:
        return size
    step = 1 << ((size - 1).bit_length() - 4)
    return -(-size // step) * step
