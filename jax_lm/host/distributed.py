"""Several hosts as one: starts `jax.distributed`, by itself where JAX knows the cluster, else by what it is given.

Knows nothing of models. JAX finds out by itself on Cloud TPU pods, under Slurm, Open MPI and JobSets (see `deploy/`).
"""

import jax


def start(
    *,
    multi_host: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Join the other processes of a run; nothing if there are none. Before anything else that uses JAX's devices.

    Arguments as in `jax_lm.cli.arguments.hosts.Hosts`. ValueError if some of coordinator, num_processes and
    process_id are given but not all, or JAX knows no cluster here.
    """
    if coordinator is not None and num_processes is not None and process_id is not None:
        if not 0 <= process_id < num_processes:
            raise ValueError(f"process_id={process_id}: must lie in [0, num_processes={num_processes})")
        jax.distributed.initialize(coordinator, num_processes, process_id)
    elif not (coordinator is None and num_processes is None and process_id is None):
        raise ValueError("coordinator, num_processes, process_id: give all three, or multi_host alone")
    elif multi_host:
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            advice = "give coordinator, num_processes and process_id"
            raise ValueError(f"multi_host: JAX knows no cluster here ({error}); {advice}") from error


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return jax.process_index() == 0
