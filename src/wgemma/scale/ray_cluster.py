"""A Ray cluster: one that is there, or one that is started on this machine and ends with us.

Nothing here imports Ray before it is asked for, because it is an extra.
"""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wgemma.errors import Error, SettingsError

LOCAL = "local"  # the address that starts Ray here
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # nothing is printed between our own lines
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayError(Error):
    """Ray is not there, or does not do what it should."""


@contextmanager
def cluster(address: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Connected to the cluster at `address` inside the block; our workers there have these variables. Ray must not be
    imported before: it reads its settings once."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address == LOCAL and not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        os.environ["RAY_AUTH_MODE"] = "token"  # nobody else on this machine may use what we start
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        import ray
    except ImportError:
        raise RayError("Ray is not installed. Install it: `pip install 'wgemma[ray]'`.") from None
    _check(address)
    with _quiet_core():
        try:
            ray.init(
                address,
                include_dashboard=False if address == LOCAL else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": dict(environment)} if environment else None,
            )
            yield
        except (ConnectionError, RuntimeError, ValueError) as trouble:
            if ray.is_initialized():
                raise
            if address == LOCAL:
                raise RayError(f"Ray did not start: {first_line(trouble)}") from None
            raise _nobody(address) from None
        finally:
            ray.shutdown()


def _check(address: str) -> None:
    """Refuses an address at which nobody listens; Ray itself would try for minutes."""
    host, mark, port = address.rpartition(":")
    try:
        if mark:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError):
        raise _nobody(address) from None


def _nobody(address: str) -> RayError:
    return RayError(f"no Ray cluster answers at {address}. `ray status` on its head node says how it is.")


@contextmanager
def _quiet_core() -> Iterator[None]:
    """Ray's C++ core writes to standard error whatever it is told. Inside the block that goes nowhere, and Python's
    own standard error goes where it always went."""
    before, kept, nowhere = sys.stderr, os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with os.fdopen(os.dup(kept), "w", buffering=1, errors="backslashreplace") as own:
            if _is_standard_error(before):
                sys.stderr = own
            yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _is_standard_error(stream: object) -> bool:
    try:
        return stream.fileno() == 2  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return False


def engines(asked: int | None) -> int:
    """How many workers there are to be: as many as the cluster has GPUs, or one."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    if asked is not None and 0 < gpus < asked:
        raise SettingsError(f"--workers {asked}: Ray knows {gpus} GPUs, and every worker takes one.")
    return asked or gpus or 1


def resources() -> dict[str, float]:
    """What an engine takes. It asks for no processor, which may all be taken on a small machine; a GPU where Ray knows
    of any, so that no two engines share one."""
    import ray

    return {"num_cpus": 0, "num_gpus": 1 if ray.cluster_resources().get("GPU") else 0}


def own_device(device: "str | int | None") -> "str | int | None":
    """Which adapter a worker uses: what the user said, or the one of the GPU that Ray gave it. Ray numbers GPUs as the
    driver does, and WebGPU pays no attention to CUDA_VISIBLE_DEVICES."""
    import ray

    ids = ray.get_gpu_ids()
    return int(ids[0]) if device is None and ids and str(ids[0]).isdigit() else device


def first_line(trouble: Exception) -> str:
    return str(trouble).strip().partition("\n")[0][:300]
