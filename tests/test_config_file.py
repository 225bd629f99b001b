"""A recipe is a command line in a file."""

import pytest

from jax_lm.config_file import expanded


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "# a comment\nlearning_rate: 1e-6\ntrack: [wandb, tensorboard]\nscale_rewards: false\ntop_p: null\n"
    )
    return str(path)


@pytest.mark.parametrize("form", ["--config {}", "--config={}"])
def test_options_become_flags_before_what_was_typed(recipe, form):
    config = form.format(recipe).split()
    typed = ["--out", "x", *config, "--learning-rate", "2"]
    options = ["--learning-rate", "1e-6", "--track", "wandb", "tensorboard", "--scale-rewards", "False"]
    assert expanded(["grpo", *typed]) == ["grpo", *options, "--top-p", "None", *typed]


def test_without_a_recipe_nothing_changes(recipe):
    for arguments in ([], ["generate", "a text"], ["generate", "--", "--config", recipe]):
        assert expanded(arguments) == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- 2\n", "must be a mapping of options to values"),
        ("a: {b: 1}\n", "a must be a value or a list of values"),
        ("a: [1, [2]]\n", "a must be a value or a list of values"),
        ("a: [1\n", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        expanded(["grpo", "--config", str(path)])


def test_tags_execute_nothing(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    expanded(["grpo", "--config", str(path)])
    assert not (tmp_path / "made").exists()
