"""What stand-ins and operations need of the end of a conversation that they belong to. `peer` is the one that there is.

Imports the standard library only.
"""

from abc import ABC, abstractmethod
from typing import Any


class Conversation(ABC):
    """One end of a conversation between a test and a program.

    Attributes:
        side: a letter that tells the ends apart.
        is_strict: whether stand-ins here must not decide what they are compared with.
        own: objects of this end that the other knows, by number.
        theirs: stand-ins for objects of the other end, by number.
        scope: the names among which the other end's functions seem to have been written.
        loop: the event loop in which what the other end awaits goes on.
        tasks: what the other end awaits, by number.
        waiting: what is awaited of the other end, by number.
    """

    side: str
    is_strict: bool
    own: list[Any]
    theirs: dict[int, Any]
    scope: dict[str, Any]
    loop: Any
    tasks: dict[int, Any]
    waiting: dict[int, Any]

    @abstractmethod
    def do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Have the other end carry out an operation; raises what it raised."""
        ...

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Put a value into a form that can cross."""
        ...

    @abstractmethod
    def encode_class(self, kind: type) -> Any:
        """Encode the class of an object that stays here: as one to mirror, even where both ends have it."""
        ...

    @abstractmethod
    def decode(self, form: Any) -> Any:
        """Make a value of what has crossed."""
        ...

    @abstractmethod
    def number(self, value: Any) -> tuple[int, bool]:
        """Return the number of an object of this end, and whether it is new."""
        ...

    @abstractmethod
    def adopt(self, number: int, stand_in: Any) -> Any:
        """Take an object as what stands here for one of the other end."""
        ...

    @abstractmethod
    def adopt_container(self, number: int, stand_in: Any, form: dict[str, Any]) -> Any:
        """Take a container as what stands here for an object whose class derives from a container type."""
        ...

    @abstractmethod
    def share_items(self, container: Any) -> tuple[str, list]:
        """Register a container that both ends have from now on; returns its key and its items, encoded."""
        ...

    @abstractmethod
    def is_theirs(self, value: Any) -> bool:
        """Tell whether an object stands for one of the other end."""
        ...

    @abstractmethod
    def declare(self, stand_in: Any) -> Any:
        """Remember that a test has made an object itself, by calling its class."""
        ...

    @abstractmethod
    def is_free(self, stand_in: Any) -> bool:
        """Tell whether an object's own methods may decide what it equals."""
        ...

    @abstractmethod
    def taint(self, stand_in: Any) -> None:
        """Remember that an object of the other end has seen an operand that it might be compared with."""
        ...

    @abstractmethod
    def checked_error(self, error: BaseException, operation: str, arguments: tuple[Any, ...]) -> BaseException:
        """Look at an exception of the other end before it is raised here."""
        ...
