"""Activations that wait on a server for their next segment."""

from collections.abc import Sequence
from threading import Lock

import torch

from slimsched.models.elastic import Tensors


class _Rows:
    """The output of one batch, and the request of each row."""

    __slots__ = ("_places", "requests", "tensors")

    def __init__(self, requests: Sequence[int], tensors: Tensors) -> None:
        self.requests, self.tensors = requests, tensors
        self._places: dict[int, int] | None = None

    def split(self, size: int) -> "tuple[_Rows, _Rows]":
        """Split the output after this many rows."""
        return (
            _Rows(self.requests[:size], tuple([tensor[:size] for tensor in self.tensors])),
            _Rows(self.requests[size:], tuple([tensor[size:] for tensor in self.tensors])),
        )

    def place(self, request: int) -> int:
        if self._places is None:
            self._places = {request: row for row, request in enumerate(self.requests)}
        return self._places[request]


class ActivationStore:
    """Rows of batch outputs by request. A batch that stays together is handed over without a copy.

    Outputs are stored whole under their first request, and split when someone asks for part of one.
    Tensors that go in or out are complete: no device still writes to them.
    """

    def __init__(self) -> None:
        self._whole: dict[int, _Rows] = {}
        self._rows: dict[int, _Rows] = {}
        self._kept: dict[int, dict[int, _Rows]] = {}  # by request, then by number of segments that have run
        self._lock = Lock()  # lanes take and put while the event loop asks

    def __len__(self) -> int:
        return len(self._opened())

    def __contains__(self, request: int) -> bool:
        return request in self._opened()

    def requests(self) -> list[int]:
        """List the requests whose activations are here."""
        return list(self._opened())

    def put(self, requests: Sequence[int], rows: Tensors) -> None:
        """Store one row per request."""
        if len(requests):
            with self._lock:
                self._whole[requests[0]] = _Rows(requests, rows)

    def keep(self, requests: Sequence[int], segments: int, rows: Tensors) -> None:
        """Keep what these requests gave after N segments, until it is forgotten."""
        kept = _Rows(requests, rows)
        with self._lock:
            for request in requests:
                self._kept.setdefault(request, {})[segments] = kept

    def revive(self, requests: Sequence[int], segments: int) -> None:
        """Store again what was kept after N segments, for those of these requests that have it."""
        with self._lock:
            kept = {request: self._kept.get(request, {}).get(segments) for request in requests}
            self._rows.update({request: rows for request, rows in kept.items() if rows is not None})

    def take(self, requests: Sequence[int]) -> Tensors:
        """Return the rows of these requests, in order, and remove them from the store."""
        return joined(self.take_pieces([requests]))

    def take_pieces(self, parts: Sequence[Sequence[int]]) -> list[Tensors]:
        """Take the rows of several blocks, one block after the other, without joining them."""
        pieces: list[Tensors] = []
        for requests in parts:
            with self._lock:
                if (whole := self._found(requests)) is not None:
                    pieces += [rows.tensors for rows in whole]
                    for rows in whole:
                        del self._whole[rows.requests[0]]
                    continue
            opened = self._opened()
            pieces += _pieces(list(map(opened.pop, requests)), requests)
        return pieces

    def has(self, requests: Sequence[int]) -> bool:
        """Whether the rows of all these requests are here."""
        with self._lock:
            if self._found(requests) is not None:
                return True
        opened = self._opened()
        return all(request in opened for request in requests)

    def forget(self, requests: Sequence[int]) -> None:
        """Remove rows that nobody will ask for."""
        opened = self._opened()
        for request in requests:
            opened.pop(request, None)
        with self._lock:
            for request in requests:
                self._kept.pop(request, None)

    def _found(self, requests: Sequence[int]) -> list[_Rows] | None:
        """Return the whole outputs that hold exactly these requests, one after the other, if there are any.

        The last one may hold more: it is cut in two.
        """
        found, at, end = list[_Rows](), 0, len(requests)
        while at < end:
            rows = self._whole.get(requests[at])
            if rows is None:
                return None
            size = min(len(rows.requests), end - at)
            if requests[at : at + size] != rows.requests[:size]:
                return None
            if size < len(rows.requests):
                rows, rest = rows.split(size)
                self._whole[requests[at]], self._whole[rest.requests[0]] = rows, rest
            found.append(rows)
            at += size
        return found

    def _opened(self) -> dict[int, _Rows]:
        """Return every output by request."""
        if self._whole:
            with self._lock:
                for rows in self._whole.values():
                    self._rows.update(dict.fromkeys(rows.requests, rows))
                self._whole.clear()
        return self._rows


def _pieces(found: list[_Rows], requests: Sequence[int]) -> list[Tensors]:
    """Cut the rows into pieces; neighbouring rows of one output stay in one piece."""
    pieces, first, start, end = [], found[0], found[0].place(requests[0]), -1
    for rows, request in zip(found, requests, strict=True):
        row = rows.place(request)
        if end >= 0 and (rows is not first or row != end):
            pieces.append(tuple([tensor[start:end] for tensor in first.tensors]))
            first, start = rows, row
        end = row + 1
    pieces.append(tuple([tensor[start:end] for tensor in first.tensors]))
    return pieces


def joined(pieces: Sequence[Tensors]) -> Tensors:
    """Return pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    rows = tuple([torch.cat(tensors) for tensors in zip(*pieces, strict=True)])
    if rows[0].is_cuda:
        torch.cuda.current_stream(rows[0].device).synchronize()
    return rows
