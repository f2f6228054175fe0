"""Connects to a Ray cluster, or starts one."""

import logging
import os

from slimsched.core.config import SlimError

OBJECT_STORE_BYTES = 96 * 2**20
"""Size for a Ray that we start; activations do not go through the object store."""


ON_THIS_MACHINE_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray uses the loopback address on every system; by itself it does so on Windows and macOS only."""


class RayError(SlimError):
    """Ray is not installed, or not reachable at the given address."""


def connect(address: str | None, namespace: str, *, cpus: int = 0) -> None:
    """Join the Ray at an address ("auto": this machine's), or start one here with at least `cpus` CPUs.

    A Ray that is started here listens on 127.0.0.1 only. One that is joined listens where its operator said.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.setdefault(ON_THIS_MACHINE_ONLY, "0")  # Ray reads it when it is imported
    try:
        import ray
    except ImportError:
        raise RayError(
            "the engine 'ray' needs Ray; install it with pip install 'slim-scheduler[ray]'"
        ) from None
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own = {
        "num_cpus": max(cpus, os.cpu_count() or 1),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    try:
        ray.init(
            address=address or "local",
            namespace=namespace or None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({} if address else own),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        raise RayError(
            f"no Ray {where} ({str(error).splitlines()[0]}); start one with ray start --head, "
            "or leave --address out to start one for this run"
        ) from None
