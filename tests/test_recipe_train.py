"""Training the built-in model: what its run resumes from, and its chat template."""

from jax_lm.inference import BUILTIN_MODEL
from jax_lm.training.trainer import State
from recipes.builtin.rows import completion_row, stream_batches
from recipes.builtin.train import CHAT_TEMPLATE, Replayed

START = State({}, (), 0)


def test_replayed_source_draws_on_where_it_stopped(letters):
    stream = stream_batches(
        letters, seed=0, tokens_per_batch=512, lengths=(512,), shares={completion_row: 1.0}, longer_share=0.0
    )
    batches = [next(stream) for _ in range(9)]
    first, second = Replayed(iter(batches)), Replayed(iter(batches))
    assert [first.draw(START)[0] is batches[i] for i in range(3)] == [True] * 3
    second.load(first.save())
    assert second.save() == {"taken": 3}
    assert second.draw(START)[0] is batches[3]
    assert second.save() == {"taken": 4}


def test_the_shipped_chat_template_is_that_of_the_recipe():
    assert (BUILTIN_MODEL / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
