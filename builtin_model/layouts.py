"""Lay a program out as a prompt and what completes it: header, comment alone, question and answer,
hole.

Knows text, nothing of tokens.
"""

import random
import re
from collections.abc import Callable, Mapping

from builtin_model.spelling import Spelled, indented

Describe = Callable[[Spelled, random.Random], str]

FENCED = "```python\n{code}```"
ARGUMENTS = ("The input.", "The value.", "The input value.", "The argument.", "See above.")
RESULTS = ("The result.", "The answer.", "The computed value.")

SIGNED_QUESTIONS = (
    "Write a Python function `{signature}` that {does}.", "Write a function {signature} that {does}.",
    "Write `{signature}` in Python: {text}", "Implement `{signature}`. {text}",
    "Implement {signature} in Python. {text}",
    "Complete this Python code:\n{header}", "Complete this function:\n```python\n{header}\n```", "{header}",
    "Define {signature}: {text}", "Can you write a Python function {signature}? {text}", "Fill in the body:\n{header}",
    "Write a Python function `{hinted}`. {text}", "Implement `{hinted}` in Python. {text}",
)  # fmt: skip
"""How a user asks who says what the parameters are called."""

NAMED_QUESTIONS = (
    "Write a Python function named `{name}`. {text}", "Write a function `{name}` in Python: {text}",
    "{text} Call it `{name}`.",
    "Implement `{name}` in Python. {text}", "Write Python code for `{name}`. {text}",
    "Write a function called {name} that {does}.",
    "Implement {name} in Python.", "Write {name} in Python", "How do I write {name} in Python?",
    "Can you write {name}?",
    "Please implement {name}.", "write a {spoken} function", "Write a Python function for {spoken}.",
)  # fmt: skip
"""How a user asks who leaves the parameters to us."""

FREE_QUESTIONS = (
    "{text}", "{text} Use Python.", "Write a Python function that {does}.", "Write a function that {does}.",
    "Can you write a function that {does}?", "Please write a Python function that {does}.",
    "I need a function that {does}.",
    "Python: {text}", "Show me Python code: {text}", "How do I write a function that {does}?",
    "Give me a function that {does}",
)  # fmt: skip
"""How a user asks who leaves all names to us."""


SIGNED_CLASS_QUESTIONS = (
    "Complete this Python code:\n{header}", "Complete this class:\n```python\n{header}\n```", "{header}",
    "Write a Python class `{name}`: {text}", "Implement a class {name}. {text}", "Define the class {name}. {text}",
)  # fmt: skip
CLASS_QUESTIONS = (
    "Write a Python class named `{name}`. {text}", "Implement a class {name} in Python. {text}",
    "Write a class {name}.",
    "Implement {name} in Python.", "Write Python code for `{name}`. {text}", "Can you write the class {name}?",
    "How do I write a {name} class in Python?", "Write a Python class called {name}", "{text} Call it `{name}`.",
)  # fmt: skip
COMMENTS = ("# {}\n", "# {}\n\n", "# {}", '"""{}"""\n', '"""\n{}\n"""\n')


def bare(program: Spelled, rng: random.Random) -> str:
    """Write the header alone."""
    return program.header


def docstring(program: Spelled, rng: random.Random) -> str:
    """Write the description as a docstring of one line."""
    quotes = '"""' if rng.random() < 0.85 else "'''"
    space = " " if rng.random() < 0.1 else ""
    return f"{program.header}\n    {quotes}{space}{program.worded(rng)}{space}{quotes}"


def block_docstring(program: Spelled, rng: random.Random) -> str:
    """Write the description as a docstring whose quotes stand alone."""
    return f'{program.header}\n    """\n    {program.worded(rng)}\n    """'


def example_docstring(program: Spelled, rng: random.Random) -> str:
    """Write a docstring with an example of a call, where a test is one."""
    example = re.fullmatch(r"assert (.*) == (.*)", program.tests[0])
    if example is None:
        return docstring(program, rng)
    call, result = example.groups()
    shown = f">>> {call}\n    {result}" if rng.random() < 0.7 else f"Example: {call} -> {result}"
    return f'{program.header}\n    """{program.worded(rng)}\n\n    {shown}\n    """'


def sections_docstring(program: Spelled, rng: random.Random) -> str:
    """Write a docstring with sections for arguments and result."""
    if program.is_class or not program.parameters:
        return docstring(program, rng)
    arguments = "\n".join(f"        {name}: {rng.choice(ARGUMENTS)}" for name in program.parameters)
    sections = f"    Args:\n{arguments}\n\n    Returns:\n        {rng.choice(RESULTS)}"
    return f'{program.header}\n    """{program.worded(rng)}\n\n{sections}\n    """'


def comment_above(program: Spelled, rng: random.Random) -> str:
    """Write the description as a comment above the header."""
    return f"# {program.worded(rng)}\n{program.header}"


def comment_below(program: Spelled, rng: random.Random) -> str:
    """Write the description as a comment below the header."""
    return f"{program.header}\n    # {program.worded(rng)}"


DESCRIPTIONS: Mapping[Describe, int] = {
    docstring: 24,
    block_docstring: 9,
    example_docstring: 7,
    sections_docstring: 5,
    comment_above: 16,
    comment_below: 5,
}
BARE_SHARE = 0.4
"""Of the headers whose name says what is wanted."""

OPENED_SHARE = 0.15
"""Of the classes that are shown with the header of their first method."""

HIDDEN_IMPORTS_SHARE = 0.4
"""Of the headers with types from `typing`: many people paste a header without its imports."""


def header_prompt(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Show the header with or without a description; the body completes it."""
    is_bare = program.is_telling and rng.random() < BARE_SHARE
    describe = bare if is_bare else rng.choices(list(DESCRIPTIONS), list(DESCRIPTIONS.values()))[0]
    imports = "" if rng.random() < HIDDEN_IMPORTS_SHARE else program.imports
    text, body = imports + describe(program, rng), indented(program.body) + "\n"
    if program.is_class and rng.random() < OPENED_SHARE:
        return opened(text, body, rng)
    ending = rng.choices(("", "\n", "\n    "), (58, 34, 8))[0]
    return text + ending, f"\n{body}"[len(ending) :]


def opened(text: str, body: str, rng: random.Random) -> tuple[str, str]:
    """Show the header of the first method as well, with hints or without."""
    method, _, rest = body.partition("\n")
    if rng.random() < 0.5:
        hint = rng.choice(("int", "str", "float", "Any"))
        method = re.sub(r"(?<=, )(\w+)(?=[,)])", rf"\1: {hint}", method).replace("):", ") -> None:")
    return f"{text}\n{method}", f"\n{rest}"


def comment_prompt(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Show a comment or a docstring alone; the whole program completes it."""
    spoken = program.entry_point.replace("_", " ")
    text = rng.choice(
        (program.worded(rng), program.worded(rng), f"{spoken}: {program.worded(rng)}", spoken)
    )
    form = rng.choices(COMMENTS, (60, 10, 10, 12, 8))[0]
    return form.format(text), ("" if form.endswith("\n") else "\n") + program.code


def signed_comment_prompt(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Show a comment that says what everything is called; the whole program completes it."""
    return f"# {program.signature}: {program.worded(rng)}\n", program.code


def answer(program: Spelled, rng: random.Random, forms: tuple[str, ...]) -> tuple[str, str]:
    """Ask for a program in one of these forms; the answer is a fenced block of code."""
    wording = program.wording(rng)
    form = rng.choice([form for form in forms if wording.does or "{does}" not in form])
    if "{header}" in form:
        shown, rest = header_prompt(program, rng)
        return form.format(header=shown.rstrip()), FENCED.format(code=shown + rest)
    asked = form.format(
        signature=program.signature,
        hinted=program.header.removeprefix("def ").removesuffix(":"),
        name=program.entry_point,
        spoken=program.entry_point.replace("_", " "),
        does=wording.does,
        text=f"{wording.sentence(rng.choice(('{Order}', '{Order}', '{Does}')) if wording.does else '{Order}')}.",
    )
    return asked, FENCED.format(code=program.hinted_code if "{hinted}" in form else program.code)


def signed_answer(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Ask with the header or the signature."""
    return answer(program, rng, SIGNED_CLASS_QUESTIONS if program.is_class else SIGNED_QUESTIONS)


def named_answer(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Ask by a name that need not say what is wanted: the question does."""
    forms = CLASS_QUESTIONS if program.is_class else NAMED_QUESTIONS
    return answer(
        program, rng, tuple(form for form in forms if "{text}" in form or "{does}" in form)
    )


def unsigned_answer(program: Spelled, rng: random.Random) -> tuple[str, str]:
    """Ask for what everybody writes in the same way: by its name, or without one."""
    if program.is_class:
        return answer(program, rng, CLASS_QUESTIONS)
    return answer(program, rng, NAMED_QUESTIONS if rng.random() < 0.6 else FREE_QUESTIONS)


def draw_hole(text: str, body: int, rng: random.Random) -> tuple[int, int]:
    """Choose where a hole in a program begins and ends: lines, a part of a line, or anything.

    `body` is where the body begins; most holes are in it. None is longer than 160 characters.
    """
    lines = [match.span() for match in re.finditer(r"[^\n]+\n?", text)]
    inside = [span for span in lines if span[0] >= body] or lines
    first = rng.randrange(len(inside))
    start, end = inside[first]
    way = rng.random()
    if way < 0.6:
        last = min(len(inside) - 1, first + (0 if way < 0.4 else rng.randint(1, 3)))
        end = inside[last][1]
        indentation = len(text[start:]) - len(text[start:].lstrip(" "))
        start += indentation if rng.random() < 0.4 else 0
        # Without its line break, which is then the first thing behind the hole.
        end -= text[end - 1] == "\n" and rng.random() < 0.5
    elif way < 0.8:
        start = rng.randrange(start, end)
        end -= rng.random() < 0.8 and text[end - 1] == "\n" and end - 1 > start
    elif way < 0.92:
        cuts = [match.start() for match in re.finditer(r"\b", text[start:end])]
        one, other = sorted(rng.sample(cuts, 2)) if len(cuts) > 1 else (0, end - start)
        start, end = start + one, start + other
    else:
        start = rng.randrange(len(text))
        end = rng.randrange(start, len(text)) + 1
    return start, max(start + 1, min(end, start + 160))
