"""CUDA graphs by key: what is done again and again is launched as one."""

from collections.abc import Callable

import torch


class GraphCache:
    """Work captured as CUDA graphs by key, all sharing one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}

    def run(self, key: object, work: Callable[[], None]) -> None:
        """Replay the graph of this key; the first time, do the work eagerly and capture it."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        self._graphs[key] = graph

    def __len__(self) -> int:
        return len(self._graphs)
