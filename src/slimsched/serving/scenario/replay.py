"""Replay of a serving run: makes fresh state machines by their names in the log."""

from collections.abc import Callable

from slimsched.core.config import DataError
from slimsched.core.log import Header, Replayable
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY_NAME, server_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Command as GatewayCommand
from slimsched.serving.gateway.messages import Event as GatewayEvent
from slimsched.serving.routers.autoscaler import Autoscaler, LoadReported
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.catalogue import Catalogue
from slimsched.serving.scenario.files import read_setting
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import Command as SchedulerCommand
from slimsched.serving.scheduler.scheduler import Event as SchedulerEvent
from slimsched.serving.scheduler.scheduler import GreedyScheduler


def machines_of(header: Header) -> Callable[[str], Replayable]:
    """Return a function that makes any state machine of the logged run by its name."""
    setting = read_setting(header)
    return machines_for(setting.build(), setting.router, setting.seed, first_id=setting.first_id)


def machines_for(
    scenario: Scenario, router: str, seed: int, *, first_id: int = 0
) -> Callable[[str], Replayable]:
    """Return a function that makes any state machine of a run by its name.

    'server-0#2' is the second life of server-0: a scheduler that knows nothing about the first.
    """
    cluster, catalogue = scenario.cluster, Catalogue(scenario, router, seed)

    def machine(name: str) -> Replayable:
        if name == GATEWAY_NAME:
            router_made = make_router(router, cluster, seed, scenario.goal)
            gateway = Gateway(
                cluster, router_made, scenario.gateway, first_block=first_id, model_changes=catalogue
            )
            return Replayable(gateway, GatewayEvent, GatewayCommand)
        if name == AUTOSCALER_NAME and scenario.autoscale is not None:
            return Replayable(Autoscaler(scenario.autoscale), LoadReported)
        server = server_of(name)
        if server not in cluster.names:
            known = ", ".join([GATEWAY_NAME, *cluster.names[:8]])
            raise DataError(f"the log names a machine '{name}' that its scenario has not; it has {known}")
        index = cluster.names.index(server)
        scheduler = GreedyScheduler(
            scenario.schedulers[index],
            cluster.profiles[index],
            cluster.models,
            find=catalogue.on(index),
        )
        return Replayable(scheduler, SchedulerEvent, SchedulerCommand)

    return machine
