"""Slim Scheduler: serve elastic models on unequal devices, and place training jobs by their network needs.

This is all that Python users need to import; docs/python.md explains each name. Everything else is internal
and may change. Names are loaded when they are first used, so that `import slimsched` is quick and needs none
of the optional packages.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimsched.core.config import SlimError as SlimError
    from slimsched.core.version import __version__ as __version__
    from slimsched.jobs.domain import Job as Job
    from slimsched.jobs.domain import Topology as Topology
    from slimsched.jobs.scheduler import policy
    from slimsched.jobs.simulated import comparison
    from slimsched.jobs.simulated.comparison import JobSetting as JobSetting
    from slimsched.jobs.traces.jobs import generate_jobs as generate_jobs
    from slimsched.models.adapters import Exits as Exits
    from slimsched.models.adapters import Family as Family
    from slimsched.models.adapters import Nested as Nested
    from slimsched.models.adapters import Switched as Switched
    from slimsched.models.elastic import ElasticModel as ElasticModel
    from slimsched.models.elastic import PlanRun as PlanRun
    from slimsched.models.loading import load_model as load_model
    from slimsched.models.loading import trained_model as trained_model
    from slimsched.models.spec import ModelSpec as ModelSpec
    from slimsched.models.spec import TensorSpec as TensorSpec
    from slimsched.serving.api.client.client import Client as Client
    from slimsched.serving.app import serve as serve
    from slimsched.serving.domain.cluster import Cluster as Cluster
    from slimsched.serving.domain.cluster import Fault as Fault
    from slimsched.serving.gateway.bounds import BoundCurve as BoundCurve
    from slimsched.serving.gateway.goal import Goal as Goal
    from slimsched.serving.gateway.goal import parse_goal as parse_goal
    from slimsched.serving.gateway.observation import Observation as Observation
    from slimsched.serving.gateway.observation import Route as Route
    from slimsched.serving.gateway.observation import Router as Router
    from slimsched.serving.learning.policies import HeadPolicy as HeadPolicy
    from slimsched.serving.learning.policies import PaperPolicy as PaperPolicy
    from slimsched.serving.learning.ppo import PpoOptions as PpoOptions
    from slimsched.serving.learning.ppo import PpoTrainer as PpoTrainer
    from slimsched.serving.learning.rollout import RewardWeights as RewardWeights
    from slimsched.serving.scenario.files import load_scenario as load_scenario
    from slimsched.serving.scenario.scenario import Scenario as Scenario
    from slimsched.serving.simulated.run import compare as compare
    from slimsched.serving.simulated.run import simulate as simulate

    JobPolicy = policy.Policy
    compare_jobs = comparison.compare
    prepare_jobs = comparison.prepare
    simulate_jobs = comparison.simulate

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

__all__ = sorted(_HOMES)


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
    return __all__
