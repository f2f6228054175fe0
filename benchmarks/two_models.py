"""How much of the joint fluid bound `goal` reaches when two models share a cluster.

    python benchmarks/two_models.py [--seeds 5] [--seconds 20]

Two models share the servers of `laptop` and of `paper`: SlimResNet with the paper's accuracies, and a model
of three unrelated members. The load is in per cent of what the cluster can serve at the narrowest plans of
both: at 100 % nobody can serve anything wider. The value of a run is the weighted accuracy of its answers per
arrived request; the bound's value is that of the linear programme in `gateway/bounds.py`. With a weight, a
point of the second model's accuracy counts that much more.
"""

import argparse

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelFigures, ModelSpec, PlanTree, StepFigures, TensorSpec, every_plan
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.gateway.bounds import fluid_optimum
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate

LOADS = (0.5, 0.8, 1.0)
WEIGHTS = (1.0, 3.0)
MOST_REQUESTS = 60_000
"""A run ends after about this many."""
ACCURACIES = {"small": 0.62, "medium": 0.74, "large": 0.79}
WORK = (1 / 8, 1 / 2, 1.0)
"""The members' arithmetic, in that of SlimResNet's widest plan."""


def family(beside: ServedModel, weight: float = 1.0) -> ServedModel:
    """Make a model of one segment with three unrelated members."""
    members = tuple(ACCURACIES)
    spec = ModelSpec(
        name="family",
        inputs=(TensorSpec(name="x", datatype="UINT8", shape=(3, 32, 32)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(10,)),),
        segments=(members,),
        plans=every_plan((members,)),
    )
    widest = [beside.figures.steps[key.step] for key in beside.legs(beside.spec.widest)]
    macs, moved = sum(step.macs for step in widest), sum(step.moved for step in widest)
    places = spec.places()
    figures = ModelFigures(
        steps={
            step: StepFigures(int(WORK[step[1]] * macs), int(WORK[step[1]] * moved)) for step in spec.steps()
        },
        weights=dict.fromkeys(places, 1_000_000),
        output=dict.fromkeys(places, 10),
        workspace=dict.fromkeys(places, 50_000),
    )
    points = dict(zip(spec.plans, ACCURACIES.values(), strict=True))
    quality = QualityTable.from_points(PlanTree(spec.plans), name="made up", points=points)
    return ServedModel(spec, quality, figures, number=1, weight=weight)


def family_profile(slim: Profile, model: ServedModel, beside: ServedModel) -> Profile:
    """Make the profile of the family on a device where SlimResNet was measured or modelled."""
    widest = beside.legs(beside.spec.widest)
    rows, columns = range(len(slim.concurrency)), range(len(slim.batches))
    latency_s = [[sum(slim.latency_table_s[key][i][j] for key in widest) for j in columns] for i in rows]
    energy_j = [sum(slim.energy_table_j[key][j] for key in widest) for j in columns]
    keys = {key: WORK[key.choice] for key in model.keys.values()}
    places = {(1, *place): 8_000_000 for place in model.spec.places()}
    return Profile(
        name=slim.name,
        source=slim.source,
        batches=slim.batches,
        concurrency=slim.concurrency,
        latency_table_s={key: [[share * v for v in row] for row in latency_s] for key, share in keys.items()},
        energy_table_j={key: [share * v for v in energy_j] for key, share in keys.items()},
        instance_bytes=places,
        load_s=dict.fromkeys(places, 0.01),
        idle_w=slim.idle_w,
        element_bytes=slim.element_bytes,
    )


def two_models(name: str, weight: float = 1.0) -> Scenario:
    """Put the family beside SlimResNet on the cluster of a shipped scenario."""
    scenario = load_scenario(name, accuracy="paper")
    one = scenario.cluster
    slim = one.models[0]
    other = family(slim, weight)
    joined = {
        id(profile): Profile.joined([profile, family_profile(profile, other, slim)])
        for profile in one.profiles
    }
    cluster = Cluster(
        names=one.names,
        profiles=[joined[id(profile)] for profile in one.profiles],
        models=[slim, other],
        links=one.links,
        gateway_link=one.gateway_link,
        batch_limit=one.batch_limit,
    )
    return replace(scenario, cluster=cluster, shares=(0.5, 0.5))


def capacity_per_s(cluster: Cluster) -> float:
    """Most requests per second at the narrowest plans, half of them for each model, in the fluid sense."""
    plans_s = np.mean([cluster.plan_s(model, model.spec.narrowest) for model in cluster.models], axis=0)
    return float((1.0 / plans_s).sum())


class Row(Struct, frozen=True, kw_only=True):
    """One case: the bound, and what runs with different seeds reached."""

    scenario: str
    weight: float
    load: float
    rate_per_s: float
    bound: float
    values: tuple[float, ...]
    accuracies: tuple[float, ...]
    answered: tuple[float, ...]
    """Answers of each model over its arrivals, the least over the seeds."""
    p99_s: float

    @property
    def share(self) -> float:
        """The mean over seeds of a run's value, as a share of the bound's."""
        return float(np.mean(self.values)) / self.bound


def measure(name: str, load: float, *, weight: float, seeds: int, seconds: float) -> Row:
    """Run `goal` on two models at a share of the capacity."""
    scenario = two_models(name, weight)
    rate_per_s = load * capacity_per_s(scenario.cluster)
    seconds = min(seconds, MOST_REQUESTS / rate_per_s)
    scenario = scenario.with_load(rate_per_s=rate_per_s, seconds=seconds, warmup_s=0.25 * seconds)
    models = scenario.cluster.models
    weights = np.array([model.weight for model in models])
    bound = fluid_optimum(scenario.cluster, rate_per_s, shares=scenario.shares)
    values, accuracies, answered, p99_s = [], [], [], []
    for seed in range(seeds):
        stream = scenario.load.stream(seed, models, shares=scenario.shares)
        arrived = np.bincount(
            [r.model for r in stream.take_until(seconds) if r.arrival_s >= 0.25 * seconds], minlength=2
        )
        row = simulate(scenario, "goal", seed=seed, bound_accuracy=bound.accuracy).summary
        each = [row.models[model.name] for model in models]
        right = np.array([one.completed * one.accuracy_prior for one in each])
        values.append(float(weights @ right) / float(weights @ arrived))
        accuracies.append([one.accuracy_prior for one in each])
        answered.append([one.completed / count for one, count in zip(each, arrived, strict=True)])
        p99_s.append(row.latency_p99_s)
    return Row(
        scenario=name,
        weight=weight,
        load=load,
        rate_per_s=rate_per_s,
        bound=bound.accuracy,
        values=tuple(values),
        accuracies=tuple(np.mean(accuracies, axis=0).tolist()),
        answered=tuple(np.min(answered, axis=0).tolist()),
        p99_s=float(np.mean(p99_s)),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    print("| cluster | weight | load % | per s | bound % | of bound % | accuracies % | answered % | p99 ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("laptop", "paper"):
        for weight in WEIGHTS:
            for load in LOADS:
                row = measure(name, load, weight=weight, seeds=asked.seeds, seconds=asked.seconds)
                cells = [name, f"{weight:g}", f"{100 * load:.0f}", f"{row.rate_per_s:,.0f}"]
                cells += [f"{100 * row.bound:.2f}", f"{100 * row.share:.2f}"]
                cells += [", ".join(f"{100 * one:.2f}" for one in row.accuracies)]
                cells += [", ".join(f"{100 * one:.1f}" for one in row.answered), f"{1e3 * row.p99_s:.0f}"]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
