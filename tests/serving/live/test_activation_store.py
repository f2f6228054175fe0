"""The activation store: outputs that stay together are handed over whole, and cut where a batch ends."""

import pytest
import torch

from slimsched.models.elastic import Tensors
from slimsched.serving.live.batches import ActivationStore, joined


def rows(*values: float) -> Tensors:
    return (torch.tensor(values).reshape(-1, 1),)


def shown(pieces: list[Tensors]) -> list[list[float]]:
    return [piece[0].flatten().tolist() for piece in pieces]


@pytest.fixture
def store() -> ActivationStore:
    """Two calls, of three examples and of two."""
    made = ActivationStore()
    made.put([0, 1, 2], rows(0, 1, 2))
    made.put([7, 8], rows(7, 8))
    return made


def test_a_block_of_several_calls_is_taken_call_by_call(store: ActivationStore) -> None:
    assert store.has([0, 1, 2, 7, 8])
    assert shown(store.take_pieces([[0, 1, 2, 7, 8]])) == [[0, 1, 2], [7, 8]]
    assert len(store) == 0


def test_a_batch_may_end_within_a_call(store: ActivationStore) -> None:
    assert shown(store.take_pieces([[0, 1]])) == [[0, 1]]
    assert store.has([2, 7, 8])
    assert not store.has([1])
    assert shown(store.take_pieces([[2, 7]])) == [[2], [7]]
    assert shown(store.take_pieces([[8]])) == [[8]]
    assert len(store) == 0


def test_examples_may_be_taken_in_any_order(store: ActivationStore) -> None:
    assert joined(store.take_pieces([[8, 1], [0, 7, 2]]))[0].flatten().tolist() == [8, 1, 0, 7, 2]
    assert len(store) == 0


def test_what_is_forgotten_is_not_there(store: ActivationStore) -> None:
    store.forget([1])
    assert not store.has([0, 1, 2])
    assert sorted(store.requests()) == [0, 2, 7, 8]
    assert shown(store.take_pieces([[0, 2]])) == [[0], [2]]
