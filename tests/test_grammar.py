"""Grammars: ends of beginnings, and answers that are repaired until they are right."""

import ast
import gzip
import json

import jax
import numpy as np
import pytest
from flax import nnx

from jax_lm.cli import main as cli
from jax_lm.config import DreamConfig
from jax_lm.diffusion.constrained import (
    HoleArrays,
    Repair,
    constraints_of,
    log_softmax,
    meet,
    most_likely,
)
from jax_lm.diffusion.sampler import LogitsWindow, Sampler
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.grammar.python import find_end as completion
from jax_lm.model_source import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template

PROMPT = 'def area(r: float) -> float:\n    """Compute the area of a circle."""\n'
WRONG = [
    "def f(x]",
    "x = 1 2",
    "return = 3\n",
    "if x:\npass\n",
    "for x:\n",
    "x = )",
    "'abc\n",
    "try:\n    x\nelse:\n",
]


def programs(count):
    with gzip.open(BUILTIN_MODEL / "tasks.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(next(file)) for _ in range(count)]
    return [row["prompt"] + row["completion"] for row in rows]


def test_every_beginning_of_a_program_has_an_end():
    for program in programs(12):
        for end in range(len(program) + 1):
            found = completion(program[:end], "")
            assert found is not None, program[:end]
            ast.parse(program[:end] + found)


@pytest.mark.parametrize(
    "text",
    [
        "with open(p) as f, lock:\n    x = {k: [v for v in w",
        "async def f():\n    async for x in y:\n        await g(*a, **{",
        "match p:\n    case [1, *",
        "try:\n    try:\n        x\n  ",
        "try:\n    f(lambda x",
        "@decorated\n",
        "from a import (b as",
        "x: list[int] = [1, 2][-1] if a is no",
        "raise E from",
        "def f(a, /, b, *, c=",
        's = "\\',
        "s = '''a'",
        's = f"{x',
        "x = 0x",
        "f(x, # comment",
        "if x: # comment",
        "class A(B,\n",
        "x = 1 + \\",
        "print(*a, sep=",
        "global",
        "x = y if z",
        "a = b =",
        "if (n :",
    ],
)
def test_beginnings_that_are_cut_anywhere(text):
    found = completion(text, "")
    assert found is not None
    ast.parse(text + found)


@pytest.mark.parametrize(
    ("text", "most"),
    [("try:\n  pass", 30), ("def f():\n    try:\n        x = 1\n", 40), ("f" + "(" * 30, 30)],
)
def test_ends_are_short(text, most):
    found = completion(text, "")
    assert found is not None
    assert len(found) <= most
    ast.parse(text + found)


@pytest.mark.parametrize("text", WRONG)
def test_what_no_end_makes_right(text):
    assert completion(text, "") is None


def test_what_stands_after_a_hole_is_part_of_the_program():
    assert completion("def f(x):\n    y = (x", "\n    return y\n") == ")"
    assert completion("def f(x):\n    y = ", ")\n    return y\n") is None


@pytest.fixture(scope="module")
def untrained(engine):
    """An engine whose model says nothing but noise, with the built-in model's tokenizer."""
    config = DreamConfig.from_dict(
        engine.config.to_dict() | {"num_hidden_layers": 1, "initializer_range": 1.0}
    )
    other = object.__new__(type(engine))
    vars(other).update(vars(engine))
    other.sampler, other.config = Sampler(DreamForCausalLM(config, rngs=nnx.Rngs(0))), config
    return other


def decode(engine, texts, length, seed=0, **settings):
    options = GenerationOptions(max_new_tokens=length, **settings)
    return engine.decode([Template.completion(text, length) for text in texts], options, seed=seed)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "top_p": None},
        {"temperature": 0.0},
        {"temperature": 1.0, "alg": "origin", "decoding": Decoding(preset="turbo", block_length=8)},
    ],
)
def test_noise_becomes_programs(untrained, settings):
    texts = [PROMPT, "def f(x):\n", "x = [", "import os\n\n\nclass A:\n    "]
    free = decode(untrained, texts, 16, **settings)
    assert not any(parses(text + row.text) for text, row in zip(texts, free.rows, strict=True))
    held = decode(untrained, texts, 16, grammar="python", **settings)
    for text, row in zip(texts, held.rows, strict=True):
        ast.parse(text + row.text)
        assert len(row.token_ids) == len(row.confidence) == len(row.commit_step)
        assert all(0 <= p <= 1 for p in row.confidence)
    assert held.forwards > free.forwards


def parses(text):
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def test_a_program_stays_as_it_is(engine):
    settings = {"temperature": 0.0, "length": 48}
    free, held = (
        decode(engine, [PROMPT], grammar=grammar, **settings) for grammar in (None, "python")
    )
    ast.parse(PROMPT + free.rows[0].text)
    assert (held.rows, held.forwards) == (free.rows, free.forwards)


def test_a_hole_between_two_texts(untrained):
    options = GenerationOptions(max_new_tokens=8, temperature=1.0, grammar="python")
    before, after = "def f(x):\n    y = (", "\n    return y\n"
    for seed in range(4):
        ast.parse(before + untrained.infill(before, after, 8, options=options, seed=seed) + after)


def test_a_constraint_keeps_what_has_an_end_that_fits(engine):
    tokenizer = engine.tokenizer
    constraint = Constraint(find_grammar("python"), tokenizer, 12, before="def f(x):\n")
    ids = tokenizer.encode("    return (x]")
    kept = constraint.count_valid(ids, 0)
    assert tokenizer.decode(ids[:kept]) == "    return (x"
    wrong, right = tokenizer.encode("]")[0], tokenizer.encode(")")[0]
    assert constraint.next_tokens(ids[:kept], [wrong, right]) == [right]
    # No candidate can stay: the end that is known does.
    assert constraint.next_tokens(ids[:kept], [wrong]) == constraint.rest(ids[:kept])[:1]
    # A stop token can follow a program, and nothing else.
    stop = tokenizer.stop_ids[0]
    assert constraint.next_tokens(ids[:kept], [stop, right]) == [right]
    assert constraint.next_tokens([*ids[:kept], right], [stop]) == [stop]
    # An end must fit: with as many open brackets as tokens left there is none.
    assert constraint.rest(tokenizer.encode("    return ((((((((((((((")) is None


def test_the_rest_stays_if_one_token_was_wrong(engine):
    options = GenerationOptions(max_new_tokens=48, temperature=0.0)
    canvas = engine.canvas([Template.completion(PROMPT, 48)])
    right = engine.sampler.generate(canvas, options)
    tokens, second = np.array(right.tokens), canvas.region.start + 1
    tokens[0, second] = engine.tokenizer.encode("]")[0]
    wrong = right._replace(tokens=jax.numpy.asarray(tokens))
    constraints = constraints_of(canvas, options.with_settings(grammar="python"), engine.tokenizer)
    stops = engine.tokenizer.stop_ids
    repairs = [Repair(each, options) for each in constraints]
    repaired = meet(engine.sampler, canvas, wrong, repairs, options, stops)
    np.testing.assert_array_equal(repaired.tokens, right.tokens)
    # one pass for that token, and the others are as they were
    assert repaired.forwards == right.forwards + 1
    changed = np.flatnonzero(repaired.commit_step[0] != right.commit_step[0])
    assert changed.tolist() == [second]


def test_what_stays_must_be_decided_and_valid(engine):
    tokenizer = engine.tokenizer
    constraint = Constraint(find_grammar("python"), tokenizer, 12, before="def f(x):\n")

    def keeps(text, undecided=None):
        repair = Repair(constraint, GenerationOptions(temperature=0.0))
        *repair.ids, last = begun = tokenizer.encode("    return (x)")
        tokens = np.array([*begun, *tokenizer.encode(text)])
        masked = np.zeros(len(tokens), bool)
        if undecided is not None:
            masked[len(begun) + undecided :] = True
        hole = HoleArrays(tokens, masked, np.zeros_like(tokens), np.zeros(len(tokens)))
        before = masked.copy()
        repair.decide(hole, [last], 0, 1.0)
        stays = (masked == before).all()
        assert stays or masked[len(begun) :].all()
        return stays

    assert keeps(" + 1")
    # a beginning that is valid is not enough
    assert not keeps(" + 1]")
    assert not keeps(" + 1", undecided=1)
    # what comes after a stop token does not count
    stop = tokenizer.decode([tokenizer.stop_ids[0]])
    assert keeps(" + 1" + stop + "]")


class Forgetful:
    """A grammar of one text, of which it knows the end from its beginning alone."""

    reads_prompt = False

    def completion(self, text, after=""):
        return {"": "return [1, 2]", "return [1, 2]": ""}.get(text)

    def forced(self, text):
        return "", False


def test_an_end_that_was_found_once_is_not_lost(engine):
    constraint = Constraint(Forgetful(), engine.tokenizer, 12)
    ids = []
    while constraint.rest(ids):
        kept = constraint.count_valid(ids, len(ids))
        assert kept == len(ids)
        ids += constraint.next_tokens(ids, engine.tokenizer.encode("x = 3"))
    assert engine.tokenizer.decode(ids) == "return [1, 2]"
    assert constraint.is_met(ids)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda e: decode(e, ["def f(x]"], 8, grammar="python"), "no text of at most 8 tokens"),
        (
            lambda e: e.sampler.generate(
                e.canvas([Template.completion("x", 8)]), GenerationOptions(grammar="python")
            ),
            "only DiffuCoderInference",
        ),
        (
            lambda e: cli.parse(["generate", "x", "--chat", "--grammar", "python"]),
            "while chat answers",
        ),
        (lambda e: decode(e, ["x"], 8, grammar="cobol"), "grammar='cobol'"),
        (
            lambda e: decode(e, ["x"], 8, grammar="python", early_stop=False),
            "early_stop=False: must be True with a grammar",
        ),
        (
            lambda e: e.fill("x = <|hole:2|>, <|hole:2|>", GenerationOptions(grammar="python")),
            "takes one hole",
        ),
    ],
)
def test_what_cannot_be_held_is_named(engine, call, named):
    with pytest.raises(ValueError, match=named):
        call(engine)


def test_without_the_constraint_the_noise_stays(untrained, monkeypatch):
    monkeypatch.setattr(Constraint, "is_met", lambda self, ids: True)
    held = decode(untrained, [PROMPT], 16, temperature=1.0, grammar="python")
    assert not parses(PROMPT + held.rows[0].text)


def test_a_choice_reads_the_logits_of_the_model(engine):
    """From all rows, and from the block that begins with the first column that was asked for."""
    sampler = engine.sampler
    prompt = np.array(engine.tokenizer.encode(PROMPT))
    tokens = np.pad(prompt, (0, 40), constant_values=sampler.mask_id)
    length, width = len(tokens), len(tokens) + 4
    logits = np.array(sampler.forward(jax.numpy.asarray(tokens[None]))[0])
    logits[:, sampler.mask_id] = -np.inf
    padded, window = np.pad(tokens, (0, width - length)), LogitsWindow()
    first = len(prompt)
    ends = []
    for column in range(first, length):
        # row p predicts column p + 1
        found, _ = sampler.logits_at(padded, length, column, LogitsWindow())
        np.testing.assert_allclose(found, logits[column - 1], atol=2e-4)
        # nothing has changed since, so that what is not recomputed is what it would be
        found, window = sampler.logits_at(padded, length, column, window)
        np.testing.assert_allclose(found, logits[column - 1], atol=2e-4)
        ends.append(window.end)
    # 33 rows from the one before the column, or the last ones of the text
    assert ends == [first + 32] * 32 + [length] * 8
    log_probs = log_softmax(logits[first] / 0.5)
    best = most_likely(log_probs, 5)
    np.testing.assert_array_equal(best, np.argsort(-log_probs, kind="stable")[:5])
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-5)
