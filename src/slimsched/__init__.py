"""Slim Scheduler: serve elastic models on unequal devices, and place training jobs by their network needs.

This is all that Python users need to import; docs/python.md explains each name. Everything else is internal
and may change. Names are loaded when they are first used, so that `import slimsched` is quick and needs none
of the optional packages.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimsched.core.config import SlimError
    from slimsched.core.version import __version__
    from slimsched.jobs.domain import Job, Topology
    from slimsched.jobs.scheduler.policy import Policy as JobPolicy
    from slimsched.jobs.simulated.comparison import JobSetting
    from slimsched.jobs.simulated.comparison import compare as compare_jobs
    from slimsched.jobs.simulated.comparison import prepare as prepare_jobs
    from slimsched.jobs.simulated.comparison import simulate as simulate_jobs
    from slimsched.jobs.traces.jobs import generate_jobs
    from slimsched.models.adapters import Exits, Family, Nested, Switched
    from slimsched.models.elastic import ElasticModel, PlanRun
    from slimsched.models.loading import load_model, trained_model
    from slimsched.models.spec import ModelSpec, TensorSpec
    from slimsched.serving.api.client.client import Client
    from slimsched.serving.app import serve
    from slimsched.serving.domain.cluster import Cluster, Fault
    from slimsched.serving.gateway.bounds import BoundCurve
    from slimsched.serving.gateway.goal import Goal, parse_goal
    from slimsched.serving.gateway.observation import Observation, Route, Router
    from slimsched.serving.learning.policies import HeadPolicy, PaperPolicy
    from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer
    from slimsched.serving.learning.rollout import RewardWeights
    from slimsched.serving.scenario.files import load_scenario
    from slimsched.serving.scenario.scenario import Scenario
    from slimsched.serving.simulated.run import compare, simulate

__all__ = [
    "BoundCurve",
    "Client",
    "Cluster",
    "ElasticModel",
    "Exits",
    "Family",
    "Fault",
    "Goal",
    "HeadPolicy",
    "Job",
    "JobPolicy",
    "JobSetting",
    "ModelSpec",
    "Nested",
    "Observation",
    "PaperPolicy",
    "PlanRun",
    "PpoOptions",
    "PpoTrainer",
    "RewardWeights",
    "Route",
    "Router",
    "Scenario",
    "SlimError",
    "Switched",
    "TensorSpec",
    "Topology",
    "__version__",
    "compare",
    "compare_jobs",
    "generate_jobs",
    "load_model",
    "load_scenario",
    "parse_goal",
    "prepare_jobs",
    "serve",
    "simulate",
    "simulate_jobs",
    "trained_model",
]

_HOMES = {
    "BoundCurve": "serving.gateway.bounds",
    "Client": "serving.api.client.client",
    "Cluster": "serving.domain.cluster",
    "ElasticModel": "models.elastic",
    "Exits": "models.adapters",
    "Family": "models.adapters",
    "Fault": "serving.domain.cluster",
    "Goal": "serving.gateway.goal",
    "Job": "jobs.domain",
    "JobPolicy": "jobs.scheduler.policy:Policy",
    "JobSetting": "jobs.simulated.comparison",
    "ModelSpec": "models.spec",
    "Nested": "models.adapters",
    "Observation": "serving.gateway.observation",
    "PlanRun": "models.elastic",
    "HeadPolicy": "serving.learning.policies",
    "PaperPolicy": "serving.learning.policies",
    "PpoOptions": "serving.learning.ppo",
    "PpoTrainer": "serving.learning.ppo",
    "RewardWeights": "serving.learning.rollout",
    "Route": "serving.gateway.observation",
    "Router": "serving.gateway.observation",
    "Scenario": "serving.scenario.scenario",
    "SlimError": "core.config",
    "Switched": "models.adapters",
    "TensorSpec": "models.spec",
    "Topology": "jobs.domain",
    "__version__": "core.version",
    "compare": "serving.simulated.run",
    "compare_jobs": "jobs.simulated.comparison:compare",
    "generate_jobs": "jobs.traces.jobs",
    "load_model": "models.loading",
    "load_scenario": "serving.scenario.files",
    "parse_goal": "serving.gateway.goal",
    "prepare_jobs": "jobs.simulated.comparison:prepare",
    "serve": "serving.app",
    "simulate": "serving.simulated.run",
    "simulate_jobs": "jobs.simulated.comparison:simulate",
    "trained_model": "models.loading",
}
"""Where each name is defined, and what it is called there if that differs."""


if (register := getattr(sys.modules.get("gymnasium"), "register", None)) is not None:
    # gymnasium has no plugins: import it before this package, and it knows our environment
    register("slimsched/Routing-v0", entry_point="slimsched.serving.learning.environment:RoutingEnv")


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slimsched' has no attribute '{name}'; see docs/python.md")
    module, _, there = _HOMES[name].partition(":")
    value = getattr(import_module(f"slimsched.{module}"), there or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
