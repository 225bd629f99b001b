"""Templates: markers, encoding, lengths."""

import pytest

from jax_lm.templates import AUTO_LENGTHS, Template, candidate_lengths


def test_markers_become_holes():
    template = Template.parse("a<|hole|>b<|hole:3|>", 7)
    assert template.parts == ("a", 7, "b", 3, "")
    assert template.fill(["X", "Y"]) == "aXbY"


def test_parts_are_encoded_apart(engine):
    tokenizer = engine.tokenizer
    ids, holes = Template.infilling("def f(", 2, "):\n").encode(tokenizer)
    before, after = tokenizer.encode("def f("), tokenizer.encode("):\n")
    assert ids == [*before, tokenizer.mask_id, tokenizer.mask_id, *after]
    assert holes == [0] * len(before) + [1, 1] + [0] * len(after)


def test_text_after_a_hole_at_the_beginning_is_not_lost(engine):
    template = Template((8, "b"))
    # the built-in model has no gap tokens, between which an autoregressive model would read it
    with pytest.raises(ValueError, match="text after a hole"):
        template.left_to_right(engine.tokenizer)


def test_candidate_lengths():
    assert candidate_lengths(20, None) == [20]
    assert candidate_lengths(20, 5) == [5]
    assert candidate_lengths(20, "auto") == [n for n in AUTO_LENGTHS if n <= 20]
    assert candidate_lengths(2, "auto") == [2]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Template.parse("no marker", 4), "template has no hole"),
        (lambda: Template.parse("a<|hole:0|>", 4), "hole of 0 tokens"),
        (lambda: Template.parse("a<|hole:-3|>", 4), r"hole '<\|hole:-3\|>': must be"),
        (lambda: Template.parse("a<|hole:4|><|hole:abc|>", 4), r"hole '<\|hole:abc\|>': must be"),
        (
            lambda: Template.parse("a<|hole|><|hole:6|>b", 4),
            r"hole '<\|hole:6\|>': must have text between",
        ),
        (lambda: Template.parse("a<|hole:|>", 4), r"hole '<\|hole:\|>': must be"),
        (lambda: Template.completion("a", -1), "hole of -1 tokens"),
        (lambda: candidate_lengths(8, 0), "middle_length=0"),
        (lambda: candidate_lengths(8, "long"), "middle_length='long'"),
    ],
)
def test_bad_templates_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
