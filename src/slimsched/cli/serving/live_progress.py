"""How a live run goes, shown while it runs."""

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slimsched.serving.domain.request import count_examples
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.commands import Answer, Drop
from slimsched.serving.routing.events import RequestsArrived, TelemetryReceived


class LiveProgress:
    """An observer that shows how a run goes; plain lines where the output is not a terminal."""

    def __init__(self, console: Console, router: str, scenario: Scenario) -> None:
        self._router, self._models, self._console = router, scenario.cluster.models, console
        self._seconds = scenario.load.seconds
        self._arrived = self._answered = self._in_time = self._dropped = 0
        self._worth = 0.0
        self._began_s: float | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(f"{router}: starting the servers", total=None)

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._task, description=self._text())
        self._bar.stop()
        if not self._console.is_terminal:
            self._console.print(self._text(), highlight=False)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Count what one entry of the log says."""
        if isinstance(event, TelemetryReceived) and self._began_s is not None:
            passed_s = min(self._seconds, now_s - self._began_s)
            self._bar.update(self._task, description=self._text(), completed=passed_s, total=self._seconds)
        elif isinstance(event, RequestsArrived):
            self._began_s = now_s if self._began_s is None else self._began_s
            self._arrived += count_examples(event.requests)
        for command in commands:
            if isinstance(command, Answer):
                self._answered += count_examples(command.requests)
                self._in_time += sum(one.count for one in command.requests if now_s <= one.deadline_s)
                self._worth += sum(
                    one.count * self._models[one.model].expected_accuracy(one.path, one.trail)
                    for one in command.requests
                )
            elif isinstance(command, Drop):
                self._dropped += count_examples(command.requests)

    def _text(self) -> str:
        worth = f"{self._worth / self._answered:.1%}" if self._answered else "–"
        done = max(1, self._answered + self._dropped)
        return (
            f"{self._router:>10}: {self._arrived:5d} requests, {self._in_time / done:6.1%} in time, "
            f"{self._dropped:4d} dropped, plans worth {worth}"
        )
