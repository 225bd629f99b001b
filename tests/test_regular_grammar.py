"""Answers that match a regular expression or a JSON schema: ends, refusals, bounds, and answers of
a model.
"""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("outlines_core")

from experiments.serve_ratios import SCHEMA
from jax_lm.grammar import find_grammar, regular
from jax_lm.grammar.constraint import Constraint
from jax_lm.grammar.regular import regular_grammar
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PATTERNS = [
    r"[0-9]{3}-(a|bc)*d",
    r"(ab)*c",
    r"é+x?",
    r"yes|no",
    r"-?[0-9]+(\.[0-9]+)?",
    r"[a-f]{2,5}",
]


@settings(deadline=None)  # the first text of each makes its automaton
@given(st.sampled_from(PATTERNS), st.text(alphabet="0129-abcdéxyesno.f", max_size=8))
def test_an_end_is_known_exactly_where_there_is_one(pattern, text):
    """And no shorter one: every text of fewer letters is tried against Python's own engine."""
    grammar = regular_grammar("regex", pattern)
    end = grammar.completion(text)
    if end is None:
        # Whatever such a text goes on with, these are the first letters that a match could have.
        assert not re.fullmatch(pattern, text)
        assert not any(
            re.fullmatch(pattern, text + more)
            for more in ("0", "d", "c", "s", "o", "00", "no", "es", "aa")
        )
        return
    assert re.fullmatch(pattern, text + end)
    assert not end or not re.fullmatch(pattern, text)


def test_ends_are_the_shortest():
    assert regular_grammar("regex", r"(ab)*c").completion("abab") == "c"
    assert regular_grammar("regex", r"a{3}|b").completion("") == "b"
    assert regular_grammar("regex", r"a{3}|b").completion("a") == "aa"
    assert regular_grammar("regex", r"é+").completion("") == "é"
    # the whole answer matches, with anchors or without
    assert regular_grammar("regex", r"^ab$").completion("a") == "b"
    assert regular_grammar("regex", r"ab$").completion("a") == "b"
    assert regular_grammar("regex", r"a\$").completion("a") == "$"
    assert regular_grammar("regex", r"a\\$").completion("a") == "\\"
    # neither is an anchor
    assert regular_grammar("regex", r"[^a]\^\\A").completion("") == r"0^\A"


@pytest.mark.parametrize(
    ("name", "text", "forced"),
    [
        ("regex:abc", "", ("abc", True)),
        ("regex:a(bc)?", "", ("a", False)),
        ("regex:a ?b", "a", ("", False)),
        ("regex:é|è", "", ("", False)),
        ("regex:é", "", ("é", True)),
        ("regex:a[bc]{2}", "ab", ("", False)),
        # white space that is optional is that of json.dumps
        (f"json_schema:{json.dumps(PERSON)}", "", ('{"name": "', False)),
        (f"json_schema:{json.dumps(PERSON)}", '{"name":"Ann"', (', "age": ', False)),
        (f"json_schema:{json.dumps(PERSON)}", '{"name": "Ann", "age": 3', ("", False)),
        # a blank inside a string is none of it, nor a quotation mark behind a backslash
        ('json_schema:{"enum": ["a b", "ab"]}', '"a', ("", False)),
        ('json_schema:{"enum": ["\\"a b", "\\"ab"]}', "", ('"\\"a', False)),
        ("json_object", "", ("{", False)),
        ("json_object", '{"a": [1', ("", False)),
        ("json_object", '{"a": 1}', ("", True)),
        ("python", "def", ("", False)),
    ],
)
def test_what_is_forced_is_all_that_can_follow(name, text, forced):
    grammar = find_grammar(name)
    assert grammar.forced(text) == forced
    assert grammar.completion(text + forced[0]) is not None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"a(xyz)?", "axyz"), (r"-?[0-9]+(\.[0-9]+)?", "-0.5"), (r"(a|ab)c?|abcd", "abcd")],
)
def test_a_text_may_go_on_where_it_could_have_ended(pattern, text):
    grammar = regular_grammar("regex", pattern)
    assert grammar.completion(text) == ""
    assert grammar.completion(text[:-1]) is not None


def test_an_expression_must_be_valid_by_itself():
    with pytest.raises(ValueError, match="regex='a\\)\\(b'"):
        regular_grammar("regex", "a)(b")


@pytest.mark.parametrize(
    ("schema", "begun", "wrong"),
    [
        ('{"type": "object"}', '{"a": {"b": [1, "x"', "[1"),
        ("{}", '[1, {"a": n', "]"),
        # the library's expression of an empty schema accepted 0, and wrote a bracket too many
        ('{"properties": {"a": {}}, "required": ["a"]}', '{"a": [[', "0"),
        ('{"properties": {"a": {"title": "A"}}, "required": ["a"]}', '{"a": "b', "true"),
        ('{"type": "array", "items": {"type": "object"}}', '[{"a": 1}, {', "{"),
        ('{"anyOf": [{}, {"enum": ["a"]}]}', "[tr", "}"),
    ],
)
def test_any_value_takes_no_time_to_prepare(schema, begun, wrong):
    """The library looked for matches that start anywhere, which took from 9 s to more than a minute."""
    grammar = regular_grammar("json_schema", schema, 8.0)
    json.loads(begun + grammar.completion(begun))
    assert grammar.completion(wrong) is None


def test_a_schema_of_numbers_takes_fractions():
    grammar = find_grammar('json_schema:{"type": "number"}')
    assert [grammar.completion(text) for text in ("1", "0.5", "-2.25")] == ["", "", ""]


def test_a_schema_is_kept_to():
    grammar = find_grammar(f"json_schema:{json.dumps(PERSON)}")
    for beginning in (
        "",
        '{"na',
        '{"name": "Bö',
        '{"name":"Bob","age":-1',
        '{"name":"Bob","age":3,"tags":["b"',
    ):
        found = json.loads(beginning + grammar.completion(beginning))
        assert len(found["name"]) >= 2
        assert isinstance(found["age"], int)
        assert set(found) <= {"name", "age", "tags"}
    for wrong in (
        '{"age"',
        '{"name":"B"',
        '{"name":"Bob","age":3.5',
        '{"name":"Bob","age":3,"tags":[]',
        "[",
        "x",
    ):
        assert grammar.completion(wrong) is None


@pytest.mark.parametrize(
    ("rule", "inside"),
    [
        ({"pattern": "[^,]*"}, "b"),
        ({"pattern": "^.+$"}, "b"),
        ({"pattern": r"\S+"}, "b"),
        ({"pattern": "[ -~]{2,}"}, "bc"),
        ({"pattern": "ab|bc"}, "bc"),
        ({"pattern": r"\p{L}+\."}, "é."),
        ({"format": "email"}, "a@b.c"),
        ({"format": "uri"}, "https://a.b/c?d=e"),
        ({"format": "time"}, "20:10:10.5"),
    ],
)
def test_no_pattern_and_no_format_leaves_its_string(rule, inside):
    schema = {"properties": {"a": {"type": "string"} | rule}, "required": ["a"]}
    grammar = find_grammar(f"json_schema:{json.dumps({'type': 'object'} | schema)}")
    assert grammar.completion(f'{{"a": "{inside}"') == "}"
    assert json.loads(grammar.completion("")).keys() == {"a"}
    for wrong in ('"', '", "b": "b', "\\", "\n", '\\"', "\\."):
        assert grammar.completion(f'{{"a": "{inside}{wrong}"') is None


EMPTY = ("anyOf", "enum", "oneOf", "type")
NAMES = "names must have no quotation mark, backslash or control character"
MISSING = "'required' must list names of 'properties'"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("regex:(a", "regex='(a': Failed to build DFA"),
        ("regex:(?=a)b", "Failed to build DFA"),
        # the other alternative would be all that is left
        ("regex:(^a|b)c", r"^ and \A must not stand inside an expression"),
        (r"regex:(\Aa|b)c", r"^ and \A must not stand inside an expression"),
        ('json_schema:{"type": "string", "pattern": "a|^b"}', r"^ and \A must not stand inside"),
        ("json_schema:{", "json_schema='{': is not JSON"),
        ("json_schema:[1]", "json_schema: must be an object, not [1]"),
        ('json_schema:{"type": "integer", "minimum": 3}', "'minimum' is not supported"),
        (
            'json_schema:{"type": "object", "properties": {"a": {"multipleOf": 2}}}',
            "'multipleOf' is not supported",
        ),
        ('json_schema:{"anyOf": [{"type": "null"}, {"not": {}}]}', "'not' is not supported"),
        ('json_schema:{"type": "frog"}', "Unsupported type: frog"),
        (
            'json_schema:{"type": "string", "pattern": "^a$", "minLength": 5}',
            "json_schema: minLength and pattern cannot be combined",
        ),
        ('json_schema:{"const": "b", "enum": ["a"]}', "const and enum cannot be combined"),
        (
            'json_schema:{"items": {"type": "string", "format": "date", "maxLength": 2}}',
            "format and maxLength cannot be combined",
        ),
        *((f'json_schema:{{"{name}": []}}', f"{name!r} must not be empty") for name in EMPTY),
        ('json_schema:{"required": "a", "properties": {"a": {}}}', MISSING),
        ('json_schema:{"properties": {"a": {}}, "required": ["a", {}]}', MISSING),
        ('json_schema:{"type": "object", "required": ["a"]}', MISSING),
        (r'json_schema:{"properties": {"a\"b": {}}}', NAMES),
        (r'json_schema:{"const": [{"a\\b\n": 1}]}', NAMES),
        (r'json_schema:{"type": "string", "pattern": "\\x22"}', "Failed to build DFA"),
        ('json_schema:{"const": "\\ud800"}', "Expected a valid JSON string."),
        ('json_schema:{"enum": [Infinity]}', "Expected a valid JSON string."),
        ("json_schema:" + '{"items": ' * 200 + "{}" + "}" * 200, "Expected a valid JSON string."),
        ("json_schema:" + "[" * 15_000, "[[[[: is not JSON"),
        ("regex:" + "a" * 20_001, "20001 characters, at most 20000"),
        ("pascal", "must be python, json_object, regex:EXPRESSION or json_schema:SCHEMA"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_grammar(name)


def test_an_expression_with_a_huge_automaton_is_given_up(monkeypatch):
    monkeypatch.setattr(regular, "SECONDS", 1)
    with pytest.raises(ValueError, match="takes more than 1 s to prepare"):
        regular_grammar("regex", "(a|b)*a(a|b){24}")
    with pytest.raises(ValueError, match="takes"):
        regular_grammar("regex", "(((a{100}){100}){100}){10}")


@pytest.mark.parametrize("name", ["pascal", "regex:", "json_schema:", "python:x", ""])
def test_options_know_the_names(name):
    with pytest.raises(
        ValueError,
        match=re.escape(
            "must be python, json_object, regex:EXPRESSION or json_schema:SCHEMA, or None"
        ),
    ):
        GenerationOptions(grammar=name)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_knows_nothing_of_it_answers_by_it(tiny_inference, temperature):
    """Of random weights; held to an expression or a schema, every answer is one, within its canvas."""
    schema = json.dumps(PERSON)
    for name, holds in (
        (r"regex:[0-9]{3}-[a-z]+", lambda text: re.fullmatch(r"[0-9]{3}-[a-z]+", text)),
        (f"json_schema:{schema}", lambda text: {"name", "age"} <= set(json.loads(text))),
    ):
        decoding = Decoding(preset="turbo")
        options = GenerationOptions(
            max_new_tokens=40, temperature=temperature, grammar=name, decoding=decoding
        )
        for seed in range(2 if temperature else 1):
            for text in tiny_inference.complete(["def area(r):", "x ="], options, seed=seed):
                assert holds(text), text


def test_a_candidate_is_cut_where_the_grammar_ends_it(tiny_inference):
    """Vocabularies have tokens such as a quotation mark with the line break after it."""
    tokenizer = tiny_inference.tokenizer
    constraint = Constraint(find_grammar('json_schema:{"type": "string"}'), tokenizer, 12)
    begun, quote = tokenizer.encode_plain('"a'), tokenizer.encode_plain('"')
    (other,) = tokenizer.encode_plain("x")
    for text, kept in (('"\n', '"'), ('""', '"'), ("):\n", "):"), ("]]:\n", "]]:")):
        (token,) = tokenizer.encode_plain(text)
        assert constraint.next_tokens(begun, [token, other]) == tokenizer.encode_plain(kept)
        # only the first is cut: another one that fits as it is comes before their parts
        assert constraint.next_tokens([*begun, *quote], [token]) == [tokenizer.stop_ids[0]]
    (newline,) = tokenizer.encode_plain("\n")
    assert constraint.next_tokens(begun, [newline, token, other]) == [other]


def test_a_nested_schema_takes_few_forward_passes():
    """Of a model that does not write JSON: those for the text that it decodes first, and about one
    for each of the five values.
    """
    engine = DiffuCoderInference(verbose=False)
    options = GenerationOptions(
        max_new_tokens=64,
        temperature=0.3,
        decoding=Decoding(preset="turbo"),
        grammar=f"json_schema:{json.dumps(SCHEMA)}",
    )
    prompt = engine.chat_prompt("Describe a user as JSON.")
    passes = []
    for seed in range(4):
        answer = engine.decode([Template.completion(prompt, 64)], options, seed=seed)
        assert set(json.loads(answer.rows[0].text)) == set(SCHEMA["properties"])
        passes.append(answer.forwards)
    assert max(passes) <= 16
