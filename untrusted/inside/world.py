"""The files that exist for a confined process where no mount namespace hides the others.

Resolves names itself, step by step, and looks at nothing that the process must not know of: so its
answers cannot depend on it. Imports the standard library only.
"""

import errno
import os
from typing import Literal, NamedTuple

Kind = Literal["read", "work", "above", "hidden"]
MAX_LINKS = 40


class Place(NamedTuple):
    """A file by the name that the process knows and by its name on the host.

    Attributes:
        kind: to be read; in the folder to write in; a folder above one of these, of which nothing
            is shown; or hidden.
    """

    name: str
    real: str
    kind: Kind


class World:
    """The names under which a process finds files.

    Attributes:
        readable: files and folders to be read.
        hidden: folders in those that are not to be seen, but for what is readable by its own right.
        folder: where the process may write.
    """

    def __init__(self, readable: list[str], hidden: list[str], folder: str) -> None:
        self.folder = folder
        groups: dict[Kind, list[str]] = {
            "hidden": hidden,
            "read": [*readable, os.devnull],
            "work": [folder],
        }
        kinds: dict[str, Kind] = {path: kind for kind, paths in groups.items() for path in paths}
        # What a folder above those says of itself is what this one says.
        stand_in = next(path for path in readable if os.path.isdir(path))
        self.marks = {
            path: Place(path, os.path.realpath(path), kind) for path, kind in kinds.items()
        }
        for path in [path for path, kind in kinds.items() if kind != "hidden"]:
            for above in folders_above(path):
                nearest = next(
                    (kinds[folder] for folder in (above, *folders_above(above)) if folder in kinds),
                    None,
                )
                if nearest in (None, "hidden"):
                    self.marks[above] = Place(above, stand_in, "above")
        self.top = self.marks["/"]

    def resolve(self, name: str, *, follow: bool = True, create: bool = False) -> Place:
        """Find what an absolute name means; OSError as a kernel would say it if nothing else
        existed.

        Args:
            follow: whether the last part, if it is a link, means what it leads to.
            create: whether the last part need not exist: then a name that cannot be is EACCES.
        """
        is_folder = name.endswith(("/", "/."))
        trail, rest, links = [self.top], name_parts(name), 0
        while rest:
            part = rest.pop()
            if part == "..":
                trail = trail[:-1] or [self.top]
                continue
            place = self.child(
                trail[-1], part, errno.EACCES if create and not rest else errno.ENOENT
            )
            link = self.link_of(place, bool(rest)) if follow or rest or is_folder else None
            if link is None:
                trail.append(place)
                continue
            links += 1
            if links > MAX_LINKS:
                raise os_error(errno.ELOOP)
            rest += name_parts(link)
            trail = [self.top] if link.startswith("/") else trail
        place = trail[-1]
        return (
            place._replace(real=f"{place.real}/") if is_folder and place.kind != "above" else place
        )

    def child(self, above: Place, part: str, missing: int) -> Place:
        name = f"{above.name.rstrip('/')}/{part}"
        place = self.marks.get(name)
        if place is None and above.kind in ("read", "work"):
            place = Place(name, f"{above.real}/{part}", above.kind)
        if place is None or place.kind == "hidden":
            raise os_error(missing)
        return place

    def link_of(self, place: Place, must_exist: bool) -> str | None:
        """Read where a link leads to; None if it is none. What is marked is what its name leads to."""
        if place.name in self.marks:
            return None
        try:
            return os.readlink(place.real)
        except OSError as error:
            if error.errno == errno.EINVAL or (error.errno == errno.ENOENT and not must_exist):
                return None
            raise

    def name_of(self, real: str) -> str:
        """Find the name under which the process knows an open folder."""
        found = [place for place in self.marks.values() if place.kind in ("read", "work")]
        found = [
            place for place in found if real == place.real or real.startswith(f"{place.real}/")
        ]
        if not found:
            raise os_error(errno.ENOTDIR)
        place = max(found, key=lambda place: len(place.real))
        return place.name + real[len(place.real) :]


def name_parts(name: str) -> list[str]:
    """Take a name apart, last part first."""
    return [part for part in name.split("/") if part not in ("", ".")][::-1]


def folders_above(path: str) -> list[str]:
    """List the folders above a path, the nearest first."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
