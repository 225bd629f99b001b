"""Writes docs/options.md from what the commands declare.

python tools/options.py
"""

from pathlib import Path

from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.cli.declared import SYNONYMS, options_page

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
PREAMBLE = """\
Generated from the code by `python tools/options.py`; `diffucoder COMMAND --help` prints the same, those that matter
first. One name means one thing in every command, and it is Hugging Face's where there is one. `--max-new-tokens 8`,
`--max_new_tokens=8` and `max_new_tokens: 8` in a recipe (`--config`) are the same. `--watch` is a flag; `--no-watch`
and `--watch false` turn it off. What may stand without a name has one too (`--prompt`). Of several values, all follow
the option: `--k 1 10`. `-m`, `-o` and `-p` are `--model`, `--out` and `--prompt`.

| understood as well | is |
|---|---|
"""


def page() -> str:
    """The text of the page as it should be."""
    synonyms = "\n".join(f"| `{other}` | `{name}` |" for other, name in SYNONYMS.items())
    return options_page(
        {name: (entry.arguments, entry.summary) for name, entry in COMMANDS.items()}, PREAMBLE + synonyms
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
