"""Names as people give them to functions and parameters: any word, any case, or none at all.

A body has to repeat the names of its header, whatever they are. Drawn from a few hundred words and
from random letters, they can only be copied, never remembered.
"""

import builtins
import keyword
import random
import string
from collections.abc import Callable, Collection

WORDS = tuple(
    word
    for line in """
        account action address age alpha amount angle animal answer apple area argument array average balance base batch
        begin beta bill bin bit block board body book bottom bound box branch bucket buffer byte candidate card case
        cell center chain change channel char check child choice chunk circle city class client clock code coin color
        column command content cost count country course cube current cursor customer cycle data date day degree delta
        depth device diff digit direction distance document dog domain door draft edge element email end energy entry
        epoch error event example factor field figure file filter final first flag flower folder food forest form frame
        friend fruit game gap garden girl goal grade grain graph group guess half hand head height hill history hour
        house image index info inner input island item job key kind king label lamp last layer leaf left length letter
        level light limit line link lion loop lower machine mark mask mass matrix measure member message metric middle
        minute mode model moment money month moon motor mouse move name need nested neighbor node note number object
        offset order origin outer output owner page pair paper parent part past path pattern pause pencil people period
        person phrase piece pixel place planet player point pool position power prefix price problem product profit
        prompt query queue quote radius rank rate ratio raw reader record region report request rest reward right ring
        river road robot rock room root rope round route row rule sale sample scale school score screen sea season
        second segment sensor sentence sequence series session shape share ship shop side signal size slice slot smart
        snow song sort sound source space speed square stack stage start state station step stock stone store stream
        street student subject suffix sum sun symbol system table tail target task tax team term test text thing thread
        ticket tile time title token tool top total town track train tree trial truth turn unit upper user value vector
        vertex video view visit voice wall watch water wave week weight wheel width win window word work world year zone
    """.splitlines()
    for word in line.split()
)

VERBS = tuple(
    word
    for line in """
        build calc calculate check clean compute convert count create do eval extract fetch filter find format gather
        get give handle list load make my obtain parse pick print process produce put read return run search select show
        solve take test transform try update use validate work
    """.splitlines()
    for word in line.split()
)

POSSESSORS = (
    "my",
    "my",
    "your",
    "our",
    "the",
    "new",
    "old",
    "given",
    "input",
    "all",
    "some",
    "in",
    "a",
    "this",
)
"""What people put in front of a name."""

ONSETS = (*"bcdfghklmnprstvwz", "ch", "st", "tr", "th")
CODAS = ("", "", "n", "r", "l", "s", "t", "m")
"""What a syllable begins and ends with."""

RESERVED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "cls"}
"""Names that a parameter may not take, or had better not."""


def draw_word(rng: random.Random) -> str:
    """Draw a word, sometimes in the plural."""
    return rng.choice(WORDS) + ("s" if rng.random() < 0.2 else "")


def draw_phrase(rng: random.Random, count: int) -> str:
    """Join words by underscores, or by capitals."""
    words = [rng.choice(WORDS) for _ in range(count - 1)] + [draw_word(rng)]
    return "_".join(words) if rng.random() < 0.75 else camel_case("_".join(words))


def draw_numbered(rng: random.Random) -> str:
    """Draw a word or a letter with a digit behind it."""
    stem = rng.choice((rng.choice(WORDS), rng.choice(string.ascii_lowercase)))
    return f"{stem}{rng.choice(('', '_'))}{rng.randint(0, 9)}"


def draw_letters(rng: random.Random) -> str:
    """Draw letters that mean nothing."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 5)))


def draw_coined(rng: random.Random) -> str:
    """Draw syllables that are no word: several tokens that stand side by side in no other name."""
    syllables = (
        rng.choice(ONSETS) + rng.choice("aeiou") + rng.choice(CODAS)
        for _ in range(rng.randint(2, 4))
    )
    return "".join(syllables)


def draw_possessed(rng: random.Random) -> str:
    """Draw a word that is somebody's, or of some sort: `my_list`, `new_value`."""
    return f"{rng.choice(POSSESSORS)}_{draw_word(rng)}"


def draw_joined(rng: random.Random) -> str:
    """Draw two words without anything between them: `mylist`, `wordcount`."""
    return rng.choice((*POSSESSORS, *WORDS)) + draw_word(rng)


def draw_of(rng: random.Random) -> str:
    """Draw words of which one says what the other holds: `list_of_names`, `count_by_year`."""
    return f"{rng.choice(WORDS)}_{rng.choice(('of', 'of', 'in', 'by', 'to', 'for', 'per'))}_{draw_word(rng)}"


def draw_abbreviation(rng: random.Random) -> str:
    """Draw a word without its vowels."""
    word = rng.choice(WORDS)
    return word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou")


def draw_letter(rng: random.Random) -> str:
    """Draw one letter, rarely a capital."""
    return rng.choice(string.ascii_lowercase if rng.random() < 0.85 else string.ascii_uppercase)


PARAMETER_FORMS: dict[Callable[[random.Random], str], int] = {
    draw_letter: 18,
    draw_word: 26,
    lambda rng: draw_phrase(rng, 2): 12,
    draw_possessed: 7,
    draw_of: 4,
    draw_joined: 4,
    draw_coined: 9,
    draw_numbered: 8,
    draw_abbreviation: 6,
    draw_letters: 6,
}
FUNCTION_FORMS: dict[Callable[[random.Random], str], int] = {
    draw_letter: 8,
    draw_word: 14,
    lambda rng: f"{rng.choice(VERBS)}_{draw_phrase(rng, rng.randint(1, 2))}": 38,
    lambda rng: draw_phrase(rng, 2): 12,
    draw_of: 3,
    draw_joined: 5,
    draw_coined: 6,
    draw_numbered: 6,
    draw_letters: 8,
}


def draw_name(
    rng: random.Random, forms: dict[Callable[[random.Random], str], int], taken: Collection[str]
) -> str:
    """Draw a name in one of these forms, none of those that are taken or reserved."""
    while True:
        name = rng.choices(list(forms), list(forms.values()))[0](rng)
        if name not in taken and name not in RESERVED:
            return name


def draw_parameters(rng: random.Random, count: int, taken: Collection[str]) -> tuple[str, ...]:
    """Draw distinct names of parameters, sometimes of one stem: `a1, a2`."""
    if count > 1 and rng.random() < 0.25:
        stem = draw_name(rng, {draw_letter: 1, draw_word: 2}, taken)
        names = tuple(f"{stem}{number}" for number in range(1, count + 1))
        if not set(names) & set(taken):
            return names
    names = ()
    while len(names) < count:
        names += (draw_name(rng, PARAMETER_FORMS, {*taken, *names}),)
    return names


def camel_case(name: str) -> str:
    """Write `two_words` as `twoWords`."""
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def pascal_case(name: str) -> str:
    """Write `two_words` as `TwoWords`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
