"""Spelled programs: any names and words, and still right; what is held out stays held out."""

import keyword
import random
import re
from collections import Counter

import pytest

from builtin_model.compositions import draw_pipeline
from builtin_model.families import FAMILIES
from builtin_model.identifiers import FUNCTION_FORMS, PARAMETER_FORMS, draw_name, draw_parameters
from builtin_model.layouts import (
    comment_prompt,
    draw_hole,
    header_prompt,
    named_answer,
    signed_answer,
    signed_comment_prompt,
    unsigned_answer,
)
from builtin_model.spelling import draw_spelled, spell
from builtin_model.tasks import instantiate, is_held_out
from builtin_model.wordings import IMPERATIVES, Wording, infinitive, third_person

TYPING = "from typing import Any, Dict, List, Set, Tuple\n"


@pytest.fixture(scope="module")
def programs():
    rng = random.Random(1)
    return [draw_spelled(rng) for _ in range(600)]


@pytest.fixture
def rng():
    return random.Random(2)


def execute(text, program):
    """Run a text and the tests of its program; raises whatever goes wrong."""
    exec("\n".join((TYPING + text, *program.tests)), {})


def unfenced(text):
    return text.removeprefix("```python\n").removesuffix("```")


@pytest.mark.parametrize("lay_out", [header_prompt, comment_prompt, signed_comment_prompt])
def test_prompt_and_completion_pass_the_tests(programs, rng, lay_out):
    for program in programs:
        execute("".join(lay_out(program, rng)), program)


@pytest.mark.parametrize("ask", [signed_answer, named_answer, unsigned_answer])
def test_answers_pass_the_tests(programs, rng, ask):
    for program in programs:
        question, answer = ask(program, rng)
        assert re.search(r"{\w+}", question.partition(":")[0]) is None
        execute(unfenced(answer), program)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_can_be_spelled_anyhow(family, rng):
    for _ in range(8):
        program = spell(family, rng)
        execute("".join(header_prompt(program, rng)), program)


def test_no_spelling_of_a_held_out_combination_is_drawn(programs):
    assert [program.key for program in programs if is_held_out(program.key)] == []


@pytest.mark.parametrize("family", FAMILIES[::20], ids=lambda family: family.name)
def test_keys_are_those_of_the_tasks_that_ship(family):
    """Whatever is drawn on one side is recognised on the other."""
    tasks = {instantiate(family, random.Random(seed)).key for seed in range(400)}
    spelled = {spell(family, random.Random(seed)).key for seed in range(400)}
    assert tasks & spelled
    assert {key for key in tasks if key.endswith("!")} == {
        key for key in spelled if key.endswith("!")
    }


def test_plain_programs_have_the_names_that_one_would_guess(rng):
    first = {
        family.name: (family.names[0].split("$")[0], family.parameter_choices()[0])
        for family in FAMILIES
    }
    for _ in range(200):
        program = draw_spelled(rng, plain=True)
        name, parameters = first[program.family]
        assert program.entry_point.startswith(name)
        assert program.parameters == parameters


def test_named_questions_say_what_a_name_does_not(rng):
    programs = [draw_spelled(rng, usual_parameters=True) for _ in range(300)]
    for program in programs:
        question, answer = named_answer(program, rng)
        assert program.entry_point in question
        assert f"{program.entry_point}(" in answer or program.is_class
        # More than the name: what it does, in some words.
        assert len(question) > len(program.entry_point) + 15
    assert {program.family for program in programs} > {"composition"}
    assert sum(not program.is_telling for program in programs) > 100


def test_types_of_results_are_those_of_the_values(rng):
    types = {"list[int]": list, "list[str]": list, "str": str, "int": int}
    for _ in range(300):
        pipeline = draw_pipeline(rng)
        assert type(pipeline.run(pipeline.kind.draw(rng))) is types[pipeline.returns]


def test_names_are_of_every_kind_and_never_reserved(rng):
    for forms in (PARAMETER_FORMS, FUNCTION_FORMS):
        names = [draw_name(rng, forms, {"taken"}) for _ in range(3000)]
        assert all(name.isidentifier() for name in names)
        assert not {"taken", "list", "self", *keyword.kwlist} & set(names)
        assert len(set(names)) > 1000
        assert any("_" in name for name in names)
        assert any(len(name) == 1 for name in names)


def test_parameters_are_distinct(rng):
    for count in range(1, 4):
        for _ in range(300):
            names = draw_parameters(rng, count, {"a1", "x"})
            assert len(set(names)) == count
            assert not {"a1", "x"} & set(names)


@pytest.mark.parametrize("verb", sorted(IMPERATIVES))
def test_verbs_are_inflected_both_ways(verb):
    assert infinitive(third_person(verb)) == verb


@pytest.mark.parametrize(
    ("description", "order", "does"),
    [
        ("Return the sum of $n.", "return the sum of $n", "returns the sum of $n"),
        ("This function multiplies two numbers.", "multiply two numbers", "multiplies two numbers"),
        ("Given a list, return its sum.", "given a list, return its sum", ""),
        ("Bubble sort.", "bubble sort", ""),
        ("FizzBuzz up to $n.", "FizzBuzz up to $n", ""),
    ],
)
def test_descriptions_are_taken_apart(description, order, does):
    assert Wording.parse(description) == Wording(order, does)


def test_holes_lie_in_the_text_and_mostly_in_the_body(programs, rng):
    kinds = Counter()
    for program in programs:
        prompt, completion = header_prompt(program, rng)
        text = prompt + completion
        start, end = draw_hole(text, len(prompt), rng)
        assert 0 <= start < end <= len(text)
        assert end - start <= 160
        whole = text[:start].rpartition("\n")[2].strip() == "" and text[end - 1 : end + 1].count(
            "\n"
        )
        kinds["whole lines" if whole else "other"] += 1
        kinds["in the body"] += start >= len(prompt) - 1
    assert kinds["whole lines"] > 300
    assert kinds["other"] > 100
    assert kinds["in the body"] > 450
