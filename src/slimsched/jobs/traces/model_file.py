"""Training models of your own: a TOML file with a `[[model]]` table for each.

By its bytes: `compute_s` of an iteration and the `gradient_mb` that all GPUs exchange, of which `hidden`
(a share) is sent while others are computed.

By measurement: `compute_s` of an iteration on one machine and `spread_s` of the same with each of the `gpus`
GPUs on a machine of its own, behind cards of `nic_gb_per_s`. `slowdown` may stand in for `spread_s`. The
excess of a ring over n GPUs is 2 (n − 1) / n · S / B, which gives the exposed bytes S.

`scaling` lists pairs of GPUs and pace for jobs that may get fewer or more GPUs than they ask for.
"""

from pathlib import Path

from msgspec import Struct

from slimsched.jobs.domain.training_model import Scaling, TrainingModel
from slimsched.jobs.traces.known_models import TRAINING_MODELS
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.packed_text import read_packed_text
from slimsched.kernel.quantity import Amount, Count, Factor, Name, PositiveAmount, PositiveSeconds, Share
from slimsched.kernel.section import parse_toml, read_section

GB = 1e9


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model as the file gives it."""

    name: Name
    compute_s: PositiveSeconds
    gradient_mb: Amount | None = None
    hidden: Share = 0.0
    spread_s: PositiveSeconds | None = None
    slowdown: Factor | None = None
    gpus: Count = 8
    nic_gb_per_s: PositiveAmount = 12.5
    scaling: Scaling = ()
    source: str = ""


class _ModelFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models of a file."""

    model: tuple[_Model, ...]


def read_model_file(path: Path) -> dict[str, TrainingModel]:
    """Read models by name; those that we know already are replaced where the file names them too."""
    if not path.is_file():
        raise ConfigError(
            f"no model file at {path}; give a TOML file with [[model]] tables, see docs/jobs.md"
        )
    file = read_section(parse_toml(read_packed_text(path), path.name), _ModelFile, path.name)
    return {**TRAINING_MODELS, **{one.name: _training_model(one, path.name) for one in file.model}}


def _training_model(model: _Model, file: str) -> TrainingModel:
    ways = [model.gradient_mb is not None, model.spread_s is not None, model.slowdown is not None]
    if sum(ways) != 1:
        raise ConfigError(
            f"{file}, model '{model.name}': give exactly one of gradient_mb, spread_s and slowdown"
        )
    sizes = [gpus for gpus, _ in model.scaling]
    if sizes != sorted(set(sizes)):
        raise ConfigError(
            f"{file}, model '{model.name}': give the sizes in `scaling` once and in ascending order"
        )
    if model.gradient_mb is not None:
        exposed_bytes = 1e6 * model.gradient_mb * (1.0 - model.hidden)
    else:
        if model.gpus < 2:
            raise ConfigError(f"{file}, model '{model.name}': one GPU exchanges nothing; give gpus from 2 on")
        spread_s = model.spread_s or model.compute_s * (model.slowdown or 1.0)
        around = 2 * (model.gpus - 1) / model.gpus
        exposed_bytes = max(0.0, spread_s - model.compute_s) * model.nic_gb_per_s * GB / around
    return TrainingModel(
        name=model.name,
        compute_s=model.compute_s,
        exposed_bytes=exposed_bytes,
        source=model.source or file,
        scaling=model.scaling,
    )
