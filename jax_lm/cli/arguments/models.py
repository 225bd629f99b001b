"""Arguments of `diffucoder models`. Imports no JAX."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the models in the hub's cache with their type and size on disk, or delete one.

    Examples:
        diffucoder models
        diffucoder models --delete apple/DiffuCoder-7B-Base --yes

    Attributes:
        delete: hub id or owner/name@revision to delete. Without `yes`, only prints what would be
            freed.
        yes: delete instead of a dry run.
        json: print JSON instead of a table.
    """

    delete: str | None = None
    yes: bool = False
    json: bool = False

    def __post_init__(self):
        # nothing else asks for a confirmation
        if self.yes and self.delete is None:
            raise ValueError("yes: needs --delete MODEL")
