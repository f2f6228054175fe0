"""The greedy scheduler with models of other kinds than SlimResNet, and with several at once."""

from cluster import flat_profile, requests, toy_model
from slimsched.core.clock import WakeAt
from slimsched.models.spec import ANY
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import block_of, key_of, onward
from slimsched.serving.scheduler.scheduler import (
    BatchFinished,
    BlockArrived,
    Command,
    GreedyScheduler,
    InstanceLoaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
    Started,
)

FAMILY = toy_model("family", segments=[("small", "base", "large")])
NESTED = toy_model("nested", segments=[("small", "base", "large")], nested=True)
DEEP = toy_model("deep", segments=[("s", "l"), ("s", "m", "l"), ("s",)])


class Server:
    """A scheduler of some models; instances are loaded as soon as it asks for them."""

    def __init__(self, *models: ServedModel, **options: object) -> None:
        values: dict[str, object] = {"batch_limit": 4, "scale_trigger": 100, **options}
        chosen = SchedulerOptions(**values)  # type: ignore[arg-type]
        numbered = [model.numbered(number) for number, model in enumerate(models)]
        self.scheduler = GreedyScheduler(chosen, flat_profile(models=numbered), numbered)
        self.loaded: list[tuple[int, int, int]] = []
        self.ran: list[RunBatch] = []
        self._blocks = 0

    def tell(self, event: object, now_s: float = 0.0) -> None:
        self._do(self.scheduler.handle(event, now_s=now_s))  # type: ignore[arg-type]

    def arrive(
        self, count: int, *, model: int = 0, segment: int = 0, choice: int = 0, ahead: tuple[int, ...] = ()
    ) -> None:
        self._blocks += 1
        key = onward(key_of(model, segment, choice, ANY), ahead)
        members = requests(count, first=100 * self._blocks, model=model)
        self.tell(BlockArrived(block=block_of(self._blocks, key, members)))

    def finish(self, run: RunBatch) -> None:
        self.tell(BatchFinished(instance=run.batch.instance, busy_s=0.01, energy_j=1.0))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case LoadInstance(instance=instance):
                    self.loaded.append(instance.place)
                    self.tell(InstanceLoaded(instance=instance.id))
                case RunBatch():
                    self.ran.append(command)
                case WakeAt():
                    pass


def test_in_a_family_an_instance_of_a_larger_model_does_not_stand_in_for_a_smaller_one() -> None:
    server = Server(FAMILY)
    server.arrive(1, choice=2)
    server.finish(server.ran[0])
    server.arrive(1, choice=0)
    assert server.loaded == [(0, 0, 2), (0, 0, 0)]
    assert [run.batch.key.choice for run in server.ran] == [2, 0]
    assert server.ran[0].batch.instance != server.ran[1].batch.instance


def test_in_a_nested_model_it_does() -> None:
    server = Server(NESTED)
    server.arrive(1, choice=2)
    server.finish(server.ran[0])
    server.arrive(1, choice=0)
    assert server.loaded == [(0, 0, 2)]
    assert [run.batch.key.choice for run in server.ran] == [2, 0]


def test_in_a_family_a_busy_instance_of_another_choice_counts_neither_as_busy_nor_as_loading() -> None:
    server = Server(FAMILY)
    server.arrive(1, choice=2)  # busy now
    server.arrive(1, choice=1)
    assert server.loaded == [(0, 0, 2), (0, 0, 1)], "it would have waited for the trigger if it fitted"


def test_the_widest_choice_stays_loaded_where_it_contains_the_others_and_all_choices_where_not() -> None:
    server = Server(NESTED, FAMILY, resident=("widest",))
    server.tell(Started())
    assert server.loaded == [(0, 0, 2), (1, 0, 0), (1, 0, 1), (1, 0, 2)]


def test_segments_may_have_different_numbers_of_choices() -> None:
    server = Server(DEEP, resident=("widest",))
    server.tell(Started())
    assert server.loaded == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 2, 0)]
    server.arrive(2, choice=1, ahead=(2, 0))
    (run,) = server.ran
    assert run.batch.key.choices == (1, 2, 0)
    assert [leg.previous for leg in run.batch.key.legs] == [ANY] * 3
    assert len({run.batch.instance, *run.batch.also}) == 3


def test_requests_of_two_models_never_share_a_batch_or_an_instance() -> None:
    server = Server(FAMILY, FAMILY)
    for model in (0, 1):
        server.arrive(1, model=model)
    first, second = server.ran
    for model in (0, 1, 0, 1):
        server.arrive(1, model=model)
    server.finish(first)
    server.finish(second)
    assert [run.batch.key.model for run in server.ran] == [0, 1, 0, 1]
    for run in server.ran:
        asked = {request.model for block in run.batch.blocks for request in block.requests}
        assert asked == {run.batch.key.model}
    assert server.loaded == [(0, 0, 0), (1, 0, 0)]


def test_what_waits_is_counted_by_model_and_segment() -> None:
    server = Server(FAMILY, DEEP, vram_cap_bytes=0)
    server.arrive(3, model=0)
    server.arrive(2, model=1, segment=1, choice=2)
    assert server.scheduler.queued_by_segment() == (3, 0, 2, 0)
