"""Arguments that several commands share: how the processes of a run find each other.

Imports no JAX.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """How the processes of a run find each other; every host runs the same command.

    Attributes:
        multi_host: run as one of several processes that JAX detects by itself, as on a TPU pod.
        coordinator: address and port of process 0, for example 10.0.0.1:1234, where JAX cannot
            detect the processes.
        num_processes: number of processes.
        process_id: number of this process, from 0.
    """

    multi_host: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def __post_init__(self):
        numbers = (self.coordinator, self.num_processes, self.process_id)
        if None in numbers and numbers != (None, None, None):
            raise ValueError(
                "coordinator, num_processes, process_id: give all three, or multi_host alone"
            )
        if self.process_id is not None and self.process_id not in range(self.num_processes or 0):
            raise ValueError(
                f"process_id={self.process_id}: must lie in [0, num_processes={self.num_processes})"
            )
