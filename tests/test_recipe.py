"""A recipe is a command line in a file."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from jax_lm.cli import main as cli
from jax_lm.cli.parsing import parse_words, read_recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hold what a recipe may say."""

    config: Path | None = None
    learning_rate: float = 1.0
    track: tuple[str, ...] = ()
    scale_rewards: bool = True
    top_p: float | None = 0.5

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate={self.learning_rate}: must be positive")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "# a comment\nlearning_rate: 1e-6\ntrack: [wandb, tensorboard]\nscale_rewards: false\ntop_p: null\n"
    )
    return str(path)


@pytest.mark.parametrize("form", ["--config {}", "--config={}"])
def test_what_is_typed_wins(recipe, form):
    typed = ["--learning-rate", "2", *form.format(recipe).split()]
    found = parse_words(Settings, typed, "grpo")
    assert (found.learning_rate, found.track, found.scale_rewards, found.top_p) == (
        2.0, ("wandb", "tensorboard"), False, None,
    )  # fmt: skip
    assert parse_words(Settings, typed[2:], "grpo").learning_rate == 1e-6


def test_a_typed_number_of_steps_overrules_the_epochs_of_a_recipe():
    words = ["sft", "--config", "recipes/sft_builtin.yaml", "--data", "d", "--out", "o"]
    assert cli.parse(words).settings.num_train_epochs == 20
    steps = cli.parse([*words, "--max-steps", "4"]).settings
    assert (steps.num_train_epochs, steps.training.max_steps) == (None, 4)
    epochs = cli.parse([*words[:1], *words[3:], "--warmup-steps", "1500", "--stop-after", "2000"])
    assert (epochs.settings.num_train_epochs, epochs.settings.training.max_steps) == (3, None)
    with pytest.raises(ValueError, match="max_steps=4: must not be given with num_train_epochs"):
        cli.parse([*words, "--max-steps", "4", "--num-train-epochs", "2"])


def test_a_recipe_is_read_as_values(recipe):
    assert read_recipe(Settings, Path(recipe), "diffucoder grpo") == {
        "learning_rate": 1e-6, "track": ("wandb", "tensorboard"), "scale_rewards": False, "top_p": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- 2\n", "must be a mapping of options to values"),
        ("a b: 1\n", "must be a mapping of options to values"),
        ("a: {b: 1}\n", "a must be a value or a list of values"),
        ("a: [1, [2]]\n", "a must be a value or a list of values"),
        ("a: [1\n", "cannot be read"),
        ("learning_rate: 1\ntop_p: 1\nlearning_rate: 2\n", "learning_rate is given twice"),
        (None, "cannot be read"),
        ("learning_rte: 1\n", r"learning_rte: no option of grpo \(perhaps learning_rate\)"),
        ("learning_rate: fast\n", "learning_rate 'fast': must be FLOAT"),
        ("learning_rate: -1\n", "learning_rate=-1.0: must be positive"),
        ("track: 1\nlearning_rate: [1, 2]\n", "learning_rate: takes one value, not 2"),
    ],
)
def test_mistakes_in_a_recipe_name_the_file(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=f"config='{path}': {message}"):
        parse_words(Settings, ["--config", str(path)], "grpo")


def test_a_typed_mistake_does_not_blame_the_recipe(recipe):
    with pytest.raises(ValueError, match=r"^learning_rate=-1.0: must be positive$"):
        parse_words(Settings, ["--config", recipe, "--learning-rate", "-1"], "grpo")


def test_tags_execute_nothing(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"track: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    parse_words(Settings, ["--config", str(path)], "grpo")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "name", ["sft_builtin", "sft_paper", "grpo_builtin", "grpo_paper", "adapt_paper"]
)
def test_the_recipes_of_this_project_parse(name):
    command = name.partition("_")[0]
    words = [command, "--config", f"recipes/{name}.yaml", "--out", "o"]
    if command != "grpo":
        words += ["--data", "d"]
    if command == "adapt":
        words += ["--model", "m"]
    assert cli.parse(words).config == Path(f"recipes/{name}.yaml")
