"""`diffucoder chat`: a conversation at the terminal, with the canvas shown while it fills in."""

import contextlib
import difflib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jax_lm.cli.arguments.chat import Chat
from jax_lm.cli.commands.watching import watch
from jax_lm.host import interruption, terminal
from jax_lm.host.files import write_whole
from jax_lm.inference import CHAT_NOTICE, DiffuCoderInference
from jax_lm.options import GenerationOptions
from jax_lm.templates import Template
from jax_lm.tokenizer import Message

END = "."
HELP = """\
/infill [FILE]  fill the <|hole|> or <|hole:12|> marks of a file, or of the lines that follow up to a single dot
/reset          forget the conversation
/save FILE      write the conversation as JSON messages
/help           this
/exit           leave, as Ctrl-D does; Ctrl-C stops an answer
A line that ends in a backslash goes on."""


@dataclass
class Dialogue:
    """Messages so far, and what answers them.

    Attributes:
        lines: what the user types, line by line.
        failures: requests that could not be answered.
    """

    engine: DiffuCoderInference
    options: GenerationOptions
    seed: int
    system: str | None
    lines: Iterator[str]
    messages: list[Message] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self) -> None:
        self.reset("")

    def commands(self) -> dict[str, Callable[[str], None]]:
        """What a line that begins with a slash may ask for, besides leaving."""
        return {"/infill": self.infill, "/reset": self.reset, "/save": self.save, "/help": lambda _: print(HELP)}

    def take(self, line: str) -> bool:
        """Do what a line asks for; False if that is to leave."""
        name, _, rest = line.partition(" ")
        try:
            if name == "/exit":
                return False
            if line.startswith("/"):
                self.command(name)(rest.strip())
            elif line.strip():
                self.say(line)
        except KeyboardInterrupt:
            interruption.forgive()
            terminal.say("stopped")
        except (ValueError, OSError) as error:
            self.failures += 1
            terminal.say(f"error: {error}")
        return True

    def command(self, name: str) -> Callable[[str], None]:
        """Find a command; ValueError names the nearest one."""
        known = self.commands()
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "/exit"], n=1)
            raise ValueError(f"{name}: no command; perhaps {near[0] if near else '/help'}")
        return known[name]

    def say(self, text: str) -> None:
        """Answer a message; one that cannot be answered is taken back."""
        self.messages.append({"role": "user", "content": text})
        answer = None
        try:
            prompt = self.engine.chat_prompt(self.messages)
            answer = self.write(Template.completion(prompt, self.options.max_new_tokens), shows_given=False)
            self.messages.append({"role": "assistant", "content": answer})
        finally:
            if answer is None:
                self.messages.pop()

    def infill(self, path: str) -> None:
        """Fill the holes of a file, or of the lines that follow."""
        if path:
            text = terminal.read_text_file(Path(path).expanduser())
        else:
            if sys.stdin.isatty():
                terminal.say(f"a text with <|hole|> marks; a line with a single {END} ends it")
            text = "\n".join(iter(lambda: next(self.lines, END), END))
        self.write(Template.parse(text, self.options.max_new_tokens), shows_given=True)

    def write(self, template: Template, *, shows_given: bool) -> str:
        """Fill a template, watched on a terminal; returns what is new."""
        if sys.stdout.isatty():
            row = watch(self.engine, template, self.options, self.seed, shows_given=shows_given)
        else:
            (row,) = self.engine.decode([template], self.options, seed=self.seed).rows
            print((template.filled(row.holes) if shows_given else row.text).rstrip("\n"), flush=True)
        self.seed += 1
        return row.text

    def reset(self, _: str) -> None:
        """Forget everything but the system's message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def save(self, path: str) -> None:
        """Write the messages; ValueError if it is not said where."""
        if not path:
            raise ValueError("/save: needs the name of a file")
        write_whole(Path(path).expanduser(), json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n")
        terminal.say(f"wrote {len(self.messages)} messages to {path}")


def run_chat(arguments: Chat) -> int:
    """Answer what is typed until there is nothing more."""
    engine = DiffuCoderInference(
        arguments.model, arguments.tokenizer, arguments.dtype, mesh=arguments.mesh, adapter=arguments.adapter
    )
    # Before the first message: a model without a template can hold no conversation.
    engine.chat_prompt("x")
    if engine.is_builtin:
        terminal.say(f"warning: {CHAT_NOTICE}")
    lines = typed_lines()
    conversation = Dialogue(engine, arguments.generation, arguments.seed, arguments.system, lines)
    with interruption.patiently():
        for line in lines:
            if not conversation.take(line):
                break
    return 0 if sys.stdin.isatty() or not conversation.failures else terminal.USAGE_ERROR


def typed_lines() -> Iterator[str]:
    """Yield messages from standard input, of several lines where one ends in a backslash."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        terminal.say("/help lists the commands")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # lines can then be edited and called back
    held = ""
    while True:
        try:
            line = input(("... " if held else "> ") if is_terminal else "")
        except EOFError:
            if held:
                yield held
            return
        if line.endswith("\\"):
            held += f"{line[:-1]}\n"
            continue
        yield held + line
        held = ""
