"""Arguments that several commands share: how the processes of a run find each other. Imports no JAX."""

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


ONE_HOST = Hosts()
