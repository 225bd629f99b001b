"""The tasks that ship with the built-in model are what the recipe draws."""

import gzip

from builtin_model.export import HELD_OUT_COUNT, TRAINING_COUNT, held_out, main, training
from builtin_model.tasks import is_held_out
from jax_lm.data.prompts import TASKS_FILE, shipped_tasks


def test_the_recipe_draws_the_first_tasks_that_ship():
    assert held_out(50) == list(shipped_tasks("held-out")[:50])
    assert training(50) == list(shipped_tasks("training")[:50])


def test_the_hash_of_its_key_puts_each_task_on_its_side():
    assert all(is_held_out(task.key) for task in shipped_tasks("held-out"))
    assert not any(is_held_out(task.key) for task in shipped_tasks("training"))


def test_the_file_is_the_same_each_time(tmp_path):
    first, second = (tmp_path / name for name in ("first.gz", "second.gz"))
    main(first, held_out_count=20, training_count=30)
    main(second, held_out_count=20, training_count=30)
    assert first.read_bytes() == second.read_bytes()
    lines, shipped = (
        gzip.decompress(path.read_bytes()).splitlines() for path in (first, TASKS_FILE)
    )
    assert lines == shipped[:20] + shipped[HELD_OUT_COUNT : HELD_OUT_COUNT + 30]
    assert len(shipped) == HELD_OUT_COUNT + TRAINING_COUNT
    assert TASKS_FILE.stat().st_size < 2**20
