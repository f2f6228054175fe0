"""A router whose decisions come from outside: the simulation runs in a thread and stops at every decision."""

from collections.abc import Callable
from threading import Semaphore, Thread

from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class _EpisodeAbandoned(BaseException):
    """Ends the simulation's thread when no more answers will come."""


class ExternalRouter:
    """Lets the caller decide: `start()` returns the first observation, `answer(route)` the next, and so on.

    Exactly one of the two threads runs at any time, so nothing else needs a lock.
    """

    def __init__(self) -> None:
        self.question: Observation | None = None
        self._answer: Route | None = None
        self._asked, self._answered = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._abandoned = False
        self._failure: BaseException | None = None

    def route(self, seen: Observation) -> Route | None:
        """Ask for a decision and wait for it. The gateway calls this in the simulation's thread."""
        self.question = seen
        self._asked.release()
        self._answered.acquire()
        if self._abandoned:
            raise _EpisodeAbandoned
        return self._answer

    def start(self, simulation: Callable[[], object]) -> Observation | None:
        """Run a simulation up to its first decision; None if it ends without one."""
        self._thread = Thread(target=self._run, args=(simulation,), daemon=True, name="simulation")
        self._thread.start()
        return self._wait()

    def answer(self, route: Route | None) -> Observation | None:
        """Give the decision and return the observation of the next one; None at the end."""
        self._answer = route
        self._answered.release()
        return self._wait()

    def abandon(self) -> None:
        """End the simulation at once."""
        if self._thread is not None and self._thread.is_alive():
            self._abandoned = True
            self._answered.release()
            self._thread.join()
        self._thread = None

    def _wait(self) -> Observation | None:
        self._asked.acquire()
        if self._failure is not None:
            raise self._failure
        return self.question

    def _run(self, simulation: Callable[[], object]) -> None:
        try:
            simulation()
        except _EpisodeAbandoned:
            return
        except BaseException as failure:
            self._failure = failure
        self.question = None
        self._asked.release()
