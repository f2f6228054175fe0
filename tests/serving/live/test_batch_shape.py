"""CPU batches are padded to few sizes, and answers are those of the examples."""

from hypothesis import given
from hypothesis import strategies as st

from slimsched.serving.live.batches import FINEST, shape_for


@given(st.integers(1, 4096))
def test_a_shape_holds_the_batch_and_is_at_most_an_eighth_larger(size: int) -> None:
    assert size <= shape_for(size) <= size * 1.125
    assert shape_for(shape_for(size)) == shape_for(size)


def test_small_batches_run_as_they_are_and_there_are_few_larger_shapes() -> None:
    assert [shape_for(size) for size in range(1, FINEST + 1)] == list(range(1, FINEST + 1))
    assert (shape_for(17), shape_for(33), shape_for(100)) == (18, 36, 104)
    assert len({shape_for(size) for size in range(1, 129)}) == 40
