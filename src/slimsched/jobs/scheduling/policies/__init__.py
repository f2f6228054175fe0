"""The policies by name: one file each, one line here."""

from collections.abc import Callable

from slimsched.jobs.scheduling.policies.a_srpt import ASrpt
from slimsched.jobs.scheduling.policies.dally import (
    Dally,
    fully_consolidated,
    manual_timers,
    mean_tuner,
    no_wait,
)
from slimsched.jobs.scheduling.policies.fifo import Fifo
from slimsched.jobs.scheduling.policies.fit_first import FitFirst
from slimsched.jobs.scheduling.policies.gandiva import Gandiva
from slimsched.jobs.scheduling.policies.lwf import Lwf
from slimsched.jobs.scheduling.policies.scored import Scored
from slimsched.jobs.scheduling.policies.srtf import Srsf, Srtf
from slimsched.jobs.scheduling.policies.themis import Themis
from slimsched.jobs.scheduling.policies.tiresias import Tiresias
from slimsched.jobs.scheduling.policy import Policy
from slimsched.kernel.errors import ConfigError, UnknownNameError

POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "fit-first": FitFirst,
    "srtf": Srtf,
    "srsf": Srsf,
    "tiresias": Tiresias,
    "gandiva": Gandiva,
    "themis": Themis,
    "lwf": Lwf,
    "a-srpt": ASrpt,
    "scored": Scored,
    "dally": Dally,
    "no-wait": no_wait,
    "fully-consolidated": fully_consolidated,
    "mean-tuner": mean_tuner,
}
MANUAL = "manual:TM:TR"

PolicyMaker = Callable[[str], Policy]
"""Makes a fresh policy from its name; `policy_named` knows those of the table."""


def policy_named(name: str) -> Policy:
    """A fresh policy; 'manual:TM:TR' is dally with timers of so many seconds for everybody."""
    if name.startswith("manual:"):
        try:
            rack_s, network_s = (float(part) for part in name.split(":")[1:])
        except ValueError:
            raise ConfigError(
                f"policy '{name}' is not of the form {MANUAL}, such as manual:43200:86400"
            ) from None
        if not 0 <= rack_s <= network_s:
            raise ConfigError(f"policy '{name}': the timers must not be negative and TM not above TR")
        return manual_timers(rack_s, network_s)
    try:
        return POLICIES[name]()
    except KeyError:
        raise UnknownNameError("policy", name, (*POLICIES, MANUAL)) from None
