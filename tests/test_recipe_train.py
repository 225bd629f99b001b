"""Training the built-in model: what its run resumes from, and its chat template."""

import pickle
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count

import numpy as np
import pytest

from builtin_model.bpe import save_tokenizer, train_bpe
from builtin_model.rows import draw_text
from builtin_model.train import (
    CHAT_TEMPLATE,
    CHUNK,
    SPACED,
    Chunks,
    Recipe,
    batches,
    begin,
    build_tokenizer,
    whole_chunk,
)
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.tokenizer import END_OF_TEXT, MASK, DiffuCoderTokenizer
from jax_lm.training.trainer import State

START = State({}, (), 0)


def numbered_chunk(number):
    """Batches that say of which chunk they are, and which of it."""
    return ((number, place) for place in count())


def test_a_source_draws_on_where_it_stopped():
    first, second = Chunks(numbered_chunk), Chunks(numbered_chunk)
    drawn = [first.draw(START)[0] for _ in range(2 * CHUNK + 3)]
    assert (
        drawn == [(number, place) for number in range(3) for place in range(CHUNK)][: 2 * CHUNK + 3]
    )
    second.load(first.save())
    assert [second.draw(START)[0] for _ in range(5)] == [first.draw(START)[0] for _ in range(5)]


def test_a_source_that_stopped_at_the_end_of_a_chunk_draws_the_next():
    source = Chunks(numbered_chunk)
    source.load({"taken": CHUNK})
    assert source.draw(START)[0] == (1, 0)


def test_what_is_drawn_ahead_is_the_same_and_is_given_up_at_the_end():
    asked = []

    def chunk(number):
        asked.append(number)
        return numbered_chunk(number)

    alone = Chunks(numbered_chunk)
    with ThreadPoolExecutor(1) as pool, closing(Chunks(chunk, pool, ahead=3)) as ahead:
        drawn = [ahead.draw(START)[0] for _ in range(2 * CHUNK + 3)]
        assert drawn == [alone.draw(START)[0] for _ in drawn]
        ahead.load({"taken": 7 * CHUNK + 1})
        assert ahead.draw(START)[0] == (7, 1)
        assert ahead.save() == {"taken": 7 * CHUNK + 2}
    assert set(asked) <= set(range(11))


def test_a_process_can_draw_a_chunk(tokenizer, tmp_path):
    chunk = partial(
        batches, Recipe(out=tmp_path, tokens_per_batch=384), tokenizer, "decay", "start"
    )
    sent = pickle.loads(pickle.dumps(partial(whole_chunk, chunk)))
    for mine, its in zip(whole_chunk(chunk, 2), sent(2), strict=True):
        assert np.array_equal(mine.tokens, its.tokens)


def test_a_longer_first_phase_is_the_same_run(tmp_path):
    short, long = (
        Recipe(out=tmp_path, stable_steps=steps).phases()["stable"] for steps in (10, 20)
    )
    assert short.identity == long.identity
    assert (short.last_step, long.last_step) == (10, 20)


def test_the_shipped_chat_template_is_that_of_the_recipe():
    assert (BUILTIN_MODEL / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(0, 1500)


def test_the_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    again = DiffuCoderTokenizer.from_pretrained(tmp_path)
    rng = random.Random(3)
    for text in (draw_text(rng) for _ in range(100)):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == text
    assert (again.vocab_size, again.mask_id, again.chat_template) == (
        1536,
        tokenizer.mask_id,
        CHAT_TEMPLATE,
    )


def test_a_name_is_one_piece_wherever_it_stands(tokenizer):
    """So that names are copied, not translated: those that are one token, and those that are
    several.
    """
    for name in ("numbers", "phrase", "temperatures", "old_values", "zorbax"):
        alone = tokenizer.encode(name)
        for before in (*"([.= ", " (", "return "):
            assert tokenizer.encode(f"x{before}{name}")[-len(alone) :] == alone


def test_a_space_joins_only_whole_words_that_are_no_names(tokenizer):
    assert tokenizer.backend.encode(" return returned").tokens == [
        "\u0120return",
        "\u0120return",
        "ed",
    ]
    joined = [token for token in tokenizer.backend.get_vocab() if re.match("\u0120[A-Za-z]", token)]
    assert sorted(joined) == sorted(f"\u0120{word}" for word in SPACED)


def test_a_joined_word_must_be_a_token():
    with pytest.raises(ValueError, match="spaced='zebra'"):
        train_bpe(
            ["a cat"] * 9, vocab_size=290, special_tokens=(MASK, END_OF_TEXT), spaced=("zebra",)
        )


def test_a_run_goes_on_from_a_model_with_its_tokenizer(tmp_path):
    model, tokenizer = begin(Recipe(out=tmp_path, start=BUILTIN_MODEL))
    trained, words = (
        DreamForCausalLM.from_pretrained(BUILTIN_MODEL),
        DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL),
    )
    for mine, its in zip(parameters(model).values(), parameters(trained).values(), strict=True):
        assert mine.dtype == np.float32
        assert np.array_equal(mine, np.asarray(its, np.float32))
    assert tokenizer.encode("def f(numbers):") == words.encode("def f(numbers):")


def test_a_run_from_other_weights_draws_other_rows(tokenizer, tmp_path):
    recipe = Recipe(out=tmp_path)
    first, again, other = (
        next(batches(recipe, tokenizer, "decay", start, 0)) for start in ("a", "a", "b")
    )
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)
