"""Several hosts as one: starts `jax.distributed`, by itself where JAX knows the cluster, else by what it is told.

Knows nothing of models. JAX finds out by itself on Cloud TPU pods, under Slurm, Open MPI and JobSets (see `deploy/`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """How the processes of a run find each other; every host runs the same command.

    Attributes:
        multi_host: this is one process of several, and JAX finds out the rest.
        coordinator: address and port of process 0, such as 10.0.0.1:1234, where JAX cannot find out.
        num_processes: how many there are.
        process_id: which of them this is, from 0.
    """

    multi_host: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def start(self) -> None:
        """Join the other processes; nothing if there are none. Before anything else that uses JAX.

        Raises:
            ValueError: some of coordinator, num_processes and process_id are given, or JAX knows no cluster here.
        """
        import jax  # not before arguments are parsed

        explicit = (self.coordinator, self.num_processes, self.process_id)
        if all(value is None for value in explicit):
            if self.multi_host:
                self.detect()
            return
        if self.coordinator is None or self.num_processes is None or self.process_id is None:
            raise ValueError("coordinator, num_processes, process_id: give all three, or multi_host alone")
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(f"process_id={self.process_id}: must lie in [0, num_processes={self.num_processes})")
        jax.distributed.initialize(self.coordinator, self.num_processes, self.process_id)

    def detect(self) -> None:
        import jax

        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"multi_host: JAX knows no cluster here ({error}); give coordinator, num_processes and process_id"
            ) from error


ONE_HOST = Hosts()


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    import jax

    return jax.process_index() == 0
