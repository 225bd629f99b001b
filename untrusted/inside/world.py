"""The files that exist for a confined process where no mount namespace hides the others.

Resolves names itself, part by part. It never looks at files that the process must not know about,
so its answers cannot depend on them. Imports the standard library only.
"""

import os
from errno import EACCES, EINVAL, ELOOP, ENOENT, ENOTDIR
from typing import Literal, NamedTuple

Kind = Literal["read", "work", "above", "hidden"]
# As many links in one name as Linux follows.
MAX_LINKS = 40


class Place(NamedTuple):
    """A file: its name for the process and its path on the host.

    Attributes:
        name: name for the process.
        real: path on the host.
        kind: "read": may be read; "work": in the work folder, may be written; "above": a folder
            above one of these, of which nothing else is shown; "hidden": does not exist for the
            process.
    """

    name: str
    real: str
    kind: Kind


class World:
    """The names under which a process finds files.

    Attributes:
        readable: files and folders that may be read.
        hidden: folders within these that must not be seen, except for entries of `readable`.
        folder: the folder in which the process may write.
    """

    def __init__(self, readable: list[str], hidden: list[str], folder: str):
        self.folder = folder
        shown = (*readable, os.devnull, folder)
        # Later groups override earlier ones for the same path.
        kinds: dict[str, Kind] = {
            **dict.fromkeys(hidden, "hidden"),
            **dict.fromkeys(shown, "read"),
            folder: "work",
        }
        # A folder above these must show no facts of its own; it shows those of this folder instead.
        stand_in = next(path for path in readable if os.path.isdir(path))
        self.marks = {
            path: Place(path, os.path.realpath(path), kind) for path, kind in kinds.items()
        }
        # readable /usr/lib -> marks for / and /usr as "above", unless a readable folder contains
        # them.
        for path in shown:
            nearest = None
            for above in folders_above(path):
                # The nearest marked folder decides: below a readable one, everything is readable
                # anyway.
                nearest = kinds.get(above, nearest)
                if nearest in (None, "hidden"):
                    self.marks[above] = Place(above, stand_in, "above")
        self.top = self.marks["/"]

    def resolve(self, name: str, *, follow: bool = True, create: bool = False) -> Place:
        """Return the file that an absolute name means.

        Raises OSError as a kernel would if no other files existed.

        Args:
            follow: follow the last part if it is a link.
            create: the last part need not exist; a name that cannot be made raises EACCES.
        """
        # A final slash demands a folder, and follows a link at the end.
        is_folder = name.endswith(("/", "/."))
        # `rest` is a stack, next part on top; `trail` are the places passed so far, for "..":
        #   /usr/../tmp/x: rest [x, tmp, .., usr], trail [/] -> [/, /usr] -> [/] -> [/, /tmp] -> ...
        trail = [self.top]
        rest = name_parts(name)
        links = 0
        while rest:
            part = rest.pop()
            # ".." at the top stays there.
            if part == "..":
                trail = trail[:-1] or [self.top]
                continue
            place = self.child(trail[-1], part, EACCES if create and not rest else ENOENT)
            link = self.link_of(place, bool(rest)) if follow or rest or is_folder else None
            if link is None:
                trail.append(place)
                continue
            links += 1
            if links > MAX_LINKS:
                raise os_error(ELOOP)
            # A link: its parts come next, from the top if it is absolute, else from where it
            # stands.
            rest += name_parts(link)
            trail = [self.top] if link.startswith("/") else trail
        place = trail[-1]
        # The kernel checks that it is a folder, by the slash.
        return (
            place._replace(real=f"{place.real}/") if is_folder and place.kind != "above" else place
        )

    def child(self, above: Place, part: str, missing: int) -> Place:
        name = f"{above.name.rstrip('/')}/{part}"
        place = self.marks.get(name)
        # Unmarked names exist only below folders that are shown.
        if place is None and above.kind in ("read", "work"):
            place = Place(name, f"{above.real}/{part}", above.kind)
        if place is None or place.kind == "hidden":
            raise os_error(missing)
        return place

    def link_of(self, place: Place, must_exist: bool) -> str | None:
        """Return the target of a link; None if it is none. Marked names are resolved already."""
        if place.name in self.marks:
            return None
        try:
            return os.readlink(place.real)
        except OSError as error:
            # EINVAL: no link. ENOENT: the last part, which may be about to be made.
            if error.errno == EINVAL or (error.errno == ENOENT and not must_exist):
                return None
            raise

    def name_of(self, real: str) -> str:
        """Return the name by which the process knows an open folder, given its path on the host."""
        shown = [place for place in self.marks.values() if place.kind in ("read", "work")]
        # The longest mark is the innermost: /work/lib before /work.
        for place in sorted(shown, key=lambda place: -len(place.real)):
            if f"{real}/".startswith(f"{place.real}/"):
                return place.name + real[len(place.real) :]
        raise os_error(ENOTDIR)


def name_parts(name: str) -> list[str]:
    """Split a name into its parts, last part first: "/usr/./lib" -> ["lib", "usr"]."""
    return [part for part in name.split("/") if part not in ("", ".")][::-1]


def folders_above(path: str) -> list[str]:
    """List the folders above a path, outermost first: "/usr/lib" -> ["/", "/usr"]."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.insert(0, path)
    return found


def os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
