"""`diffucoder chat`: a conversation at the terminal, with the canvas shown while it fills in."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jax_lm.cli.arguments.chat import Chat
from jax_lm.cli.commands.watching import watch
from jax_lm.config import counted
from jax_lm.host import interruption, terminal
from jax_lm.host.files import require_new, write_whole
from jax_lm.inference import CHAT_NOTICE, DiffuCoderInference
from jax_lm.options import GenerationOptions, require_one_of
from jax_lm.templates import Template
from jax_lm.tokenizer import Message, require_unicode

# The line that ends a text of several lines.
END = "."
HELP = """\
/infill [FILE]  fill the <|hole|> or <|hole:12|> marks of a file, or of the next lines up to a single dot
/reset          clear the conversation
/save FILE      write the conversation as JSON messages
/help           show this help
/exit           quit, like Ctrl-D; Ctrl-C stops an answer
A backslash at the end of a line continues the message."""


@dataclass
class Dialogue:
    """A conversation: its messages, and the engine that answers them.

    Attributes:
        lines: the user's input.
        failures: number of requests that failed.
    """

    engine: DiffuCoderInference
    options: GenerationOptions
    seed: int
    system: str | None
    lines: Iterator[str]
    messages: list[Message] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self):
        self.reset("")

    def take(self, line: str) -> bool:
        """Handle a line of input. Returns False for /exit."""
        # "/save talk.json" -> "/save", "talk.json"
        name, _, rest = line.partition(" ")
        try:
            if name == "/exit":
                return False
            if line.startswith("/"):
                self.command(name)(rest.strip())
            elif line.strip():
                self.say(line)
        # Ctrl-C stops the answer, not the conversation
        except KeyboardInterrupt:
            interruption.mark_handled()
            terminal.say("stopped")
        except (ValueError, OSError) as error:
            self.failures += 1
            terminal.say(f"error: {error}")
        return True

    def command(self, name: str) -> Callable[[str], None]:
        """Return a slash command other than /exit. Raises ValueError, which names the nearest."""
        commands = {
            "/infill": self.infill,
            "/reset": self.reset,
            "/save": self.save,
            "/help": lambda _: print(HELP),
        }
        require_one_of("command", name, (*commands, "/exit"))
        return commands[name]

    def say(self, text: str):
        """Answer a message. It joins the conversation with its answer, unless that fails."""
        messages = [*self.messages, {"role": "user", "content": require_unicode(text)}]
        template = Template.completion(
            self.engine.chat_prompt(messages), self.options.max_new_tokens
        )
        answer = self.write(template, shows_given=False)
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def infill(self, path: str):
        """Fill the holes of a file, or of the next lines."""
        if path:
            text = terminal.read_text_file(Path(path).expanduser())
        else:
            if sys.stdin.isatty():
                terminal.say(
                    f"enter a text with <|hole|> marks; end it with a line of a single {END}"
                )
            # lines up to the single dot; within one there is a line end only after a backslash
            lines = iter(lambda: next(self.lines, END), END)
            text = "\n".join(line.replace("\n", "\\\n") for line in lines)
        self.write(self.engine.template(text, self.options), shows_given=True)

    def write(self, template: Template, *, shows_given: bool) -> str:
        """Fill a template, live if standard output is a terminal. Returns the new text."""
        if sys.stdout.isatty():
            row = watch(self.engine, template, self.options, self.seed, shows_given=shows_given)
        else:
            (row,) = self.engine.decode_shown([template], self.options, seed=self.seed).rows
            print((template.fill(row.holes) if shows_given else row.text).rstrip("\n"), flush=True)
        # a new seed, so that asking again gives another answer
        self.seed += 1
        return row.text

    def reset(self, _: str):
        """Clear the conversation, except for the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def save(self, path: str):
        """Write the messages to a file; ValueError if none is named."""
        if not path:
            raise ValueError("/save: needs a file name")
        target = Path(path).expanduser()
        require_new(target, "/save")
        write_whole(target, json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n")
        terminal.say(f"wrote {counted(len(self.messages), 'message')} to {path}")


def run_chat(arguments: Chat) -> int:
    """Chat until the input ends."""
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # A model without a chat template should be refused before the first message.
        before_weights=lambda engine: engine.chat_prompt("x"),
    )
    if engine.is_builtin:
        terminal.say(f"warning: {CHAT_NOTICE}")
    lines = TypedLines()
    dialogue = Dialogue(engine, arguments.generation, arguments.seed, arguments.system, lines)
    with interruption.suspend_deadline():
        for line in lines:
            if not dialogue.take(line):
                break
    # in a script, failures count; at a terminal, the user has seen them
    return 0 if sys.stdin.isatty() or not dialogue.failures else terminal.USAGE_ERROR


class TypedLines(Iterator[str]):
    """Messages from standard input; lines that end in a backslash are joined with the next.

    Not a generator: Ctrl-C while a line is read would end a generator, and with it the chat.
    """

    def __init__(self):
        self.is_terminal = sys.stdin.isatty()
        if self.is_terminal:
            terminal.say("/help lists the commands")
            with suppress(ImportError):
                import readline  # noqa: F401  # enables line editing and history

    def __next__(self) -> str:
        # "a \\" and "b" are one message of two lines
        parts = []
        while True:
            try:
                line = input(("... " if parts else "> ") if self.is_terminal else "")
            except EOFError:
                if parts:
                    return "\n".join([*parts, ""])
                raise StopIteration from None
            if not line.endswith("\\"):
                return "\n".join([*parts, line])
            parts.append(line[:-1])
