"""Options of a program, declared as the fields of a dataclass or the parameters of a function.

Fields of nested dataclasses are options too, and docstrings are the help. `argparse` only formats
the help. It does not parse the command line, because it supports none of `--watch true` before a
prompt, `-1e-3` as a value, and `--max_new_tokens`. Uses only the standard library.
"""

import argparse
import difflib
import inspect
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jax_lm.config import Fields, Texts, pairs

T = TypeVar("T")
# Type of a field that may be given without its name.
Positional = Annotated[T, "positional"]

SHORT = {"-m": "--model", "-o": "--out", "-p": "--prompt"}
# Names of these options in Hugging Face and TRL, accepted wherever the option exists.
SYNONYMS = pairs("""
    --output                       --out
    --output-dir                   --out
    --logging-steps                --log-every
    --save-steps                   --save-every
    --eval-steps                   --evaluate-every
    --save-total-limit             --keep
    --report-to                    --track
    --gradient-checkpointing       --remat
    --per-device-train-batch-size  --batch-size
    --packing                      --packed
""")

# A dataclass, or a function.
Program = Any

# "--max-new-tokens=8" -> name "--max-new-tokens", value "8"; "-1e-3" is no option
WORD = re.compile(r"(?P<name>--[A-Za-z][\w-]*|-[A-Za-z]\w*)(?:=(?P<value>.*))?", re.DOTALL)
# One or several names and their text in a Google-style docstring; further lines are indented.
ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)

# Values of a flag, values of an option that may be None, and placeholders in the help.
SWITCHES = {"true": True, "false": False}
NOTHING = ("none", "null")
METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
# Larger integers do not fit the arrays of NumPy and JAX.
WORD_SIZE = 2**63
# Default of a field or parameter that has none.
REQUIRED = inspect.Parameter.empty
# How help shows some defaults, by their text.
SHOWN = {"True": "on", "False": "", "None": "", str(REQUIRED): ""}
# Sections of the help: title and description.
COMMON = ("common options", "")
OTHERS = ("options", "")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a program.

    Attributes:
        field: name of the field or parameter.
        kinds: types of a value, tried in this order; the choices of a Literal as a tuple.
        default: as a user would type it; empty if it is None, False or an empty tuple.
        help: from the docstring.
        group: title and description of its section in the help.
        takes_many: takes any number of values.
        takes_none: the value may be None.
        is_positional: may be given without its name.
        is_required: has no default.
    """

    field: str
    kinds: tuple[Any, ...]
    default: str
    help: str
    group: tuple[str, str]
    takes_many: bool
    takes_none: bool
    is_positional: bool
    is_required: bool

    @property
    def long(self) -> str:
        return f"--{self.field.replace('_', '-')}"

    @property
    def name(self) -> str:
        """The name in help and messages."""
        return self.field.upper() if self.is_positional else self.long

    @property
    def is_flag(self) -> bool:
        return self.kinds == (bool,)

    @property
    def choices(self) -> Texts:
        return self.kinds[0] if isinstance(self.kinds[0], tuple) else ()

    @property
    def metavar(self) -> str:
        """Placeholder of the value; empty for a flag."""
        if self.is_flag:
            return ""
        kinds = (f"{{{','.join(k)}}}" if isinstance(k, tuple) else METAVARS[k] for k in self.kinds)
        return "|".join(kinds) + (" ..." if self.takes_many else "")

    def value(self, texts: Sequence[str], *, is_negated: bool = False) -> Any:
        """Convert the texts given for this option.

        Raises:
            ValueError: a text is not allowed; the message names what is.
        """
        # "none" and "null", also for options that take many values
        if self.takes_none and " ".join(texts).lower() in NOTHING:
            return None
        if self.takes_many:
            return tuple(map(self.convert, texts))
        if not texts and not self.is_flag:
            raise ValueError(f"{self.name}: needs a value")
        if len(texts) > 1:
            raise ValueError(f"{self.name}: takes one value, not {len(texts)}")
        if not self.is_flag:
            return self.convert(texts[0])
        # a flag without a text is "true"
        if (state := "".join(texts).lower() or "true") not in SWITCHES:
            rule = "true or false or none" if self.takes_none else "true or false"
            raise ValueError(f"{self.name} {texts[0]!r:.80}: must be {rule}")
        # --no-watch true is False
        return SWITCHES[state] is not is_negated

    def convert(self, text: str) -> Any:
        """Convert a text to the first type that accepts it."""
        # the rule of the last type that was tried is the one in the message
        rule = self.metavar
        if self.choices:
            near = difflib.get_close_matches(text, self.choices, n=1)
            rule = f"one of {', '.join(self.choices)}{f' (perhaps {near[0]})' if near else ''}"
        # (int, str) and "auto": int fails, str fits
        for kind in self.kinds:
            try:
                value = kind[kind.index(text)] if isinstance(kind, tuple) else kind(text)
            except ValueError:
                continue
            # float() accepts nan and inf, which make no sense for any option
            if kind is float and not math.isfinite(value):
                rule = "a finite number"
            elif kind is int and not -WORD_SIZE <= value < WORD_SIZE:
                rule = "a number of 64 bits"
            # a byte that is not UTF-8 arrives as a surrogate; in a Path it is part of a file's name
            elif kind is str and any("\ud800" <= letter <= "\udfff" for letter in text):
                rule = "UTF-8"
            # Path("gs://bucket/run") is the folder gs:/bucket/run
            elif kind is Path and "://" in text:
                rule = "a local path; a bucket can be mounted as a folder (for example by gcsfuse)"
            else:
                return value
        raise ValueError(f"{self.name} {text!r:.80}: must be {rule}")


def alternatives(hint) -> tuple[Any, ...]:
    """List the types of a union; the choices of a Literal are one of them, as a tuple."""
    # int | Literal["a", "b"] | None -> (int, ("a", "b"), NoneType)
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in alternatives(part))
    return (get_args(hint) if get_origin(hint) is Literal else hint,)


def is_settings(kind) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def signature_of(kind: Program, base=None) -> dict[str, tuple[Any, Any]]:
    """Return types and defaults of a dataclass or function by name.

    Where a nested dataclass has a default, an instance `base`, its values are the defaults of the
    fields; else these have their own.
    """
    # annotations are texts in some modules: resolve them
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: (hints[name], getattr(base, name, parameter.default))
        for name, parameter in inspect.signature(kind).parameters.items()
    }


def options_in(kind: Program, base, group: tuple[str, str]) -> Iterator[Option]:
    """Yield the options of a dataclass or function, those of nested dataclasses last."""
    nested = []
    # help by name; "batch, canvas: sizes" describes two fields
    texts = {
        name: " ".join(text.split())
        for names, text in ATTRIBUTE.findall(inspect.getdoc(kind) or "")
        for name in names.split(", ")
    }
    for name, (hint, default) in signature_of(kind, base).items():
        # a nested dataclass is a section of its own, with the field's name as its title
        if is_settings(hint):
            nested.append((hint, default, (name.replace("_", " "), texts.get(name, ""))))
            continue
        # Annotated[tuple[int, ...] | None, "positional"] -> kinds (int,), many, may be None
        is_positional = get_origin(hint) is Annotated
        every = alternatives(get_args(hint)[0] if is_positional else hint)
        kinds = tuple(each for each in every if each is not NoneType)
        takes_many = get_origin(kinds[0]) is tuple
        text = texts.get(name, "")
        if is_positional and isinstance(kinds[0], tuple):
            text += f" One of {', '.join(kinds[0])}."
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        yield Option(
            field=name,
            kinds=alternatives(get_args(kinds[0])[0]) if takes_many else kinds,
            default=SHOWN.get(shown, shown),
            help=text,
            group=("arguments", "") if is_positional else group,
            takes_many=takes_many,
            takes_none=NoneType in every,
            is_positional=is_positional,
            is_required=default is REQUIRED,
        )
    # sections of nested dataclasses follow the options of the outer one
    for hint, default, inner in nested:
        yield from options_in(hint, default, inner)


@cache
def list_options(kind: Program) -> tuple[Option, ...]:
    """List the options of a program: arguments without a name, common options, all others.

    `FIRST` of a dataclass names the common options, with spaces between them. `IMPLIED` describes
    the defaults that its `implied` computes, by name.
    """
    # by field, so that the same name in two dataclasses is one option
    options = {option.field: option for option in options_in(kind, None, OTHERS)}
    for name, default in getattr(kind, "IMPLIED", {}).items():
        options[name] = replace(options[name], default=default)
    common = [
        replace(options.pop(name), group=COMMON) for name in getattr(kind, "FIRST", "").split()
    ]
    # the sort is stable: common options stay in the order of FIRST
    return tuple(sorted([*common, *options.values()], key=lambda option: not option.is_positional))


@cache
def option_names(kind: Program) -> dict[str, tuple[Option, bool]]:
    """Return every accepted spelling of an option, with the option and whether it is negated."""
    options = list_options(kind)
    # --name, --no-name for flags, then short names and synonyms of others
    names = {option.long: (option, False) for option in options}
    names |= {f"--no-{option.long[2:]}": (option, True) for option in options if option.is_flag}
    return names | {
        other: names[name] for other, name in {**SHORT, **SYNONYMS}.items() if name in names
    }


def find_option(kind: Program, word: str, prog: str) -> tuple[Option, bool]:
    """Return the option that a word names, and whether the word negates it.

    Raises:
        ValueError: there is no such option; the message suggests a similar one.
    """
    # "--max_new_tokens" -> "--max-new-tokens"
    names = option_names(kind)
    name = word.replace("_", "-")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (perhaps {names[near[0]][0].long})" if near else f"; see {prog} --help"
        raise ValueError(f"{word}: no option of {prog.removeprefix('diffucoder ')}{hint}")
    return names[name]


def read_words(kind: Program, words: Sequence[str], prog: str) -> Fields:
    """Parse a command line into values by field.

    - `--max-new-tokens 8` and `--max_new_tokens=8` are the same.
    - A flag is `--watch`, `--no-watch` or `--watch true`.
    - If an option is repeated, the last one counts.
    - No word after `--` is an option.

    Raises:
        ValueError: an unknown option, a wrong value, or too many words.
    """
    # `places` collects words without a name, for positional arguments
    rest = list(before_dashes(words))
    places = []
    given = {}
    # one word, and the values that follow it
    while rest:
        match = WORD.fullmatch(word := rest.pop(0))
        if match is None:
            places.append(word)
            continue
        # --name=value has its value; --name takes words up to the next option
        option, is_negated = find_option(kind, match["name"], prog)
        texts = [] if match["value"] is None else [match["value"]]
        limit = 0 if texts else len(rest) if option.takes_many else 1
        while rest and len(texts) < limit and not WORD.fullmatch(rest[0]):
            # `--watch "a prompt"`: the next word is no value of the flag
            if option.is_flag and rest[0].lower() not in SWITCHES:
                break
            texts.append(rest.pop(0))
        given[option.field] = option.value(texts, is_negated=is_negated)
    # words without a name, in order, for the positional arguments that are left
    places += words[len(before_dashes(words)) + 1 :]
    free = [o for o in list_options(kind) if o.is_positional and o.field not in given]
    if len(places) > len(free):
        raise ValueError(
            f"{places[len(free)]!r}: {prog.removeprefix('diffucoder ')} takes no further argument; "
            "put a text with spaces in quotes"
        )
    for option, text in zip(free, places, strict=False):
        given[option.field] = option.value([text])
    return given


def build_arguments(kind: Program, given: Fields, base=None) -> Fields:
    """Return the arguments of a dataclass or function, with instances of nested dataclasses."""
    # what is given wins; nested dataclasses are built from the same flat mapping
    arguments = {}
    for name, (hint, default) in signature_of(kind, base).items():
        if is_settings(hint):
            arguments[name] = hint(**build_arguments(hint, given, default))
        elif (value := given.get(name, default)) is not REQUIRED:
            arguments[name] = value
    return arguments


def arguments_of(kind: Program, given: Fields, prog: str) -> Fields:
    """Return the arguments of a program from its options.

    Raises:
        ValueError: a required option is missing.
    """
    missing = [o.name for o in list_options(kind) if o.is_required and o.field not in given]
    if missing:
        raise ValueError(
            f"{prog.removeprefix('diffucoder ')} needs {', '.join(missing)}; see {prog} --help"
        )
    return build_arguments(kind, given)


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`; the words after it are never options."""
    return words[: words.index("--")] if "--" in words else words


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether `-h` or `--help` is among the words before `--`."""
    return not {"-h", "--help"}.isdisjoint(before_dashes(words))


def run_main(program: Callable[..., T]) -> T:
    """Call a function or construct a dataclass with the options on this process's command line.

    Prints help for `--help`. Wrong options end the process with status 2.
    """
    # messages contain the name of the script
    words = sys.argv[1:]
    path = Path(sys.argv[0])
    prog = path.parent.name if path.name == "__main__.py" else path.name
    if asks_for_help(words):
        sys.stdout.write(help_text(program, prog))
        sys.exit(0)
    try:
        arguments = arguments_of(program, read_words(program, words, prog), prog)
        if is_settings(program):
            return program(**arguments)
    # argparse prints the usage and exits with status 2
    except ValueError as error:
        argparse.ArgumentParser(prog=prog, usage=f"{prog} --help").error(str(error))
    return program(**arguments)


def help_text(kind: Program, prog: str) -> str:
    """Return the help of a program, wrapped to the width of the terminal."""
    # usage: PROG POSITIONAL --required VALUE [OPTIONS]
    options = list_options(kind)
    width = shutil.get_terminal_size().columns - 2
    places = [o.name if o.is_required else f"[{o.name}]" for o in options if o.is_positional]
    needed = [f"{o.name} {o.metavar}" for o in options if o.is_required and not o.is_positional]
    # docstring before "Attributes:" or "Args:"; examples keep their lines
    text = inspect.getdoc(kind) or ""
    about = re.split(r"^(?:Attributes|Args):\n", text, flags=re.MULTILINE)[0].strip()
    fill = partial(textwrap.fill, width=width, break_on_hyphens=False)
    parts = (part if part.startswith("Example") else fill(part) for part in about.split("\n\n"))
    # an argument parser that only lays out the help
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=" ".join([prog, *places, *needed, "[OPTIONS]"]),
        description="\n\n".join(parts),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    # sections in the order of their first option
    groups = {
        group: parser.add_argument_group(group[0], fill(group[1]) or None)
        for group in dict.fromkeys([*(option.group for option in options), OTHERS])
    }
    groups[OTHERS].add_argument("-h", "--help", action="store_true", help="show this help and exit")
    # one entry per option
    for option in options:
        note = " (required)" if option.is_required else ""
        if option.default:
            note = f" (default: {option.default})"
        # argparse formats help with %
        text = f"{option.help}{note}".replace("%", "%%")
        if option.is_positional:
            groups[option.group].add_argument(option.field, metavar=option.name, help=text)
            continue
        # "-m, --model"
        names = [*(short for short, name in SHORT.items() if name == option.long), option.long]
        shown: Fields = {"metavar": option.metavar}
        if option.is_flag:
            shown = {"action": "store_true"}
            # a flag that is on needs the option that turns it off
            if option.default:
                names.append(f"--no-{option.long[2:]}")
        groups[option.group].add_argument(*names, help=text, **shown)
    return parser.format_help()
