"""Training the built-in model: what its run resumes from, and its chat template."""

from itertools import count

from jax_lm.inference import BUILTIN_MODEL
from jax_lm.training.trainer import State
from recipes.builtin.train import CHAT_TEMPLATE, CHUNK, Chunks, Recipe

START = State({}, (), 0)


def numbered_chunk(number):
    """Batches that say of which chunk they are, and which of it."""
    return ((number, place) for place in count())


def test_a_source_draws_on_where_it_stopped():
    first, second = Chunks(numbered_chunk), Chunks(numbered_chunk)
    drawn = [first.draw(START)[0] for _ in range(2 * CHUNK + 3)]
    assert drawn == [(number, place) for number in range(3) for place in range(CHUNK)][: 2 * CHUNK + 3]
    second.load(first.save())
    assert [second.draw(START)[0] for _ in range(5)] == [first.draw(START)[0] for _ in range(5)]


def test_a_source_that_stopped_at_the_end_of_a_chunk_draws_the_next():
    source = Chunks(numbered_chunk)
    source.load({"taken": CHUNK})
    assert source.draw(START)[0] == (1, 0)


def test_a_longer_first_phase_is_the_same_run(tmp_path):
    short, long = (Recipe(out=tmp_path, stable_steps=steps).phases()["stable"] for steps in (10, 20))
    assert short.identity == long.identity
    assert (short.last_step, long.last_step) == (10, 20)


def test_the_shipped_chat_template_is_that_of_the_recipe():
    assert (BUILTIN_MODEL / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
