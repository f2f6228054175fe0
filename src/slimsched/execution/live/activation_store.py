"""Activations that wait on a server for their next segment."""

from collections.abc import Sequence

import torch
from torch import Tensor


class ActivationStore:
    """Rows of batch outputs by request; a batch that goes on as it came is handed over without a copy."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, request: int) -> bool:
        return request in self._rows

    def put(self, requests: Sequence[int], rows: Tensor) -> None:
        """Keep one row for each request."""
        for row, request in enumerate(requests):
            self._rows[request] = (rows, row)

    def take(self, requests: Sequence[int]) -> Tensor:
        """Gather the rows of these requests, in order, and forget them."""
        found = [self._rows.pop(request) for request in requests]
        first, start = found[0]
        if all(tensor is first and row == start + n for n, (tensor, row) in enumerate(found)):
            return first[start : start + len(found)]
        if all(tensor is first for tensor, _ in found):
            return first[torch.tensor([row for _, row in found])]
        return torch.stack([tensor[row] for tensor, row in found])

    def requests(self) -> list[int]:
        """Whose activations are here."""
        return list(self._rows)

    def forget(self, requests: Sequence[int]) -> None:
        """Drop what nobody will ask for."""
        for request in requests:
            self._rows.pop(request, None)
