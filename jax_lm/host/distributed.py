"""Runs on several hosts with `jax.distributed`. Does not know about models.

JAX detects the cluster on Cloud TPU pods, and under Slurm, Open MPI and JobSets (see `deploy/`).
Elsewhere, the coordinator and the number and ids of the processes must be given.
"""

import secrets
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from jax_lm.host.files import output_folder


def start(
    *,
    multi_host: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
):
    """Join the other processes of a run; does nothing without arguments.

    This must be called before anything that uses JAX's devices.

    Args:
        multi_host: join the cluster that JAX detects.
        coordinator: address and port of process 0; also needs the other two.
        num_processes: number of processes.
        process_id: index of this process, from 0.

    Raises:
        ValueError: JAX does not detect a cluster.
    """
    if coordinator is not None:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    elif multi_host:
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"multi_host: JAX detects no cluster ({error}); give coordinator, num_processes and "
                "process_id"
            ) from error


def require_shared(out: Path):
    """Check that all processes of a run see the same folder, by a file of each process.

    Otherwise they would wait for each other's checkpoints for ever.

    Raises:
        ValueError: in every process, if one of them does not see the files of all.
    """
    count = jax.process_count()
    index = jax.process_index()
    if count == 1:
        return
    # files of this run alone: an earlier one may have been killed
    token = int(multihost_utils.broadcast_one_to_all(np.int32(secrets.randbits(30))))
    own = output_folder(out) / f".process-{token}-{index}"
    own.touch()
    multihost_utils.sync_global_devices("every process has written its file")
    seen = len(list(out.glob(f".process-{token}-*")))
    every = np.asarray(multihost_utils.process_allgather(np.int32(seen))).ravel()
    own.unlink()
    if every.min() < count:
        with suppress(OSError):
            # made for the test
            out.rmdir()
        raise ValueError(
            f"out={str(out)!r}: must be a folder that all {count} processes share; process "
            f"{every.argmin()} sees the files of {every.min()} of them"
        )


def is_first() -> bool:
    """Whether this process is the first one, which alone writes files and output."""
    return jax.process_index() == 0
