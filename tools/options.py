"""Writes docs/options.md from what the commands declare.

python tools/options.py
"""

from pathlib import Path

from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.host.declared import SYNONYMS, Option, list_options

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
PREAMBLE = """\
# Options

For people who look up an option. Generated from the code by `python tools/options.py`;
`diffucoder COMMAND --help` prints the same.

- An option has the same name and meaning in every command, and the name that Hugging Face gives it
  where there is one.
- `--max-new-tokens 8`, `--max_new_tokens=8` and `max_new_tokens: 8` in a recipe (`--config`) are the
  same.
- Flags such as `--watch` are turned off by `--no-watch` or `--watch false`.
- Options with several values take them one after the other: `--k 1 10`.
- Arguments without a name can also be given with one: `--prompt`.
- `-m`, `-o` and `-p` are short for `--model`, `--out` and `--prompt`.

| also accepted | option |
|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    lines = [f"| `{other}` | `{name}` |" for other, name in SYNONYMS.items()]
    for command, entry in COMMANDS.items():
        lines += ["", f"## diffucoder {command}", "", entry.summary, ""]
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += map(table_row, list_options(entry.arguments))
    return PREAMBLE + "\n".join([*lines, ""])


def table_row(option: Option) -> str:
    """Write one row of the documentation's table."""
    name = f"--[no-]{option.long[2:]}" if option.is_flag and option.default else option.name
    name = name if option.is_positional else f"{name} {option.metavar}".rstrip()
    default = option.default if option.default in ("on", "") else f"`{option.default}`"
    cells = (f"`{name}`", "required" if option.is_required else default, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
