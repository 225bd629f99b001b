"""`diffucoder completion`: the script by which a shell completes commands and options."""

from collections.abc import Iterator

from jax_lm.cli.arguments.completion import Completion
from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.host.declared import list_options

# Each script looks at the words before the cursor, joined by spaces and with a space at the end.
CASE = '    *"diffucoder {before}"{star}) options="{words}" ;;'
FISH = """complete -c diffucoder -a "{words}" -n \
'string match -q "*diffucoder {before}{star}" (string join " " (commandline -opc) "")'"""
SCRIPTS = {
    "bash": """\
_diffucoder() {
    local options=""
    case "${COMP_WORDS[*]:0:COMP_CWORD} " in
LINES
    esac
    COMPREPLY=($(compgen -W "$options" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _diffucoder diffucoder
""",
    "zsh": """\
#compdef diffucoder
local options=""
case "${(j: :)words[1,CURRENT-1]} " in
LINES
esac
compadd -- ${=options} || _files
""",
    "fish": "LINES\n",
}


def run_completion(arguments: Completion) -> int:
    line = FISH if arguments.shell == "fish" else CASE
    # one line of the script for each position at which something can be completed
    lines = [
        line.format(before=before, star=star, words=" ".join(words))
        for before, star, words in completions()
    ]
    print(SCRIPTS[arguments.shell].replace("LINES", "\n".join(lines)), end="")
    return 0


def completions() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the completions after each prefix of a command line.

    Yields:
        The words before the cursor; a star if the completions are also valid after further words,
        else nothing; and the completions.
    """
    # first words: generate, chat, ..., data
    first = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    yield "", "", first
    # second words: data -> prepare-acecode, show, tokenize
    for word in first:
        if second := [name.split()[1] for name in COMMANDS if name.startswith(f"{word} ")]:
            yield f"{word} ", "", second
    # options and choices, anywhere after the command
    for name, entry in COMMANDS.items():
        options = list_options(entry.arguments)
        choices = [choice for o in options if o.is_positional for choice in o.choices]
        yield f"{name} ", "*", [*choices, *(o.long for o in options if not o.is_positional)]
