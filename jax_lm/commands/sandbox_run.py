"""`diffucoder sandbox run`: run a program, contained."""

from jax_lm import sandbox, terminal
from jax_lm.arguments.sandbox import SandboxRun
from jax_lm.sandbox import Limits
from jax_lm.sandbox.assertions import split_tests


def run(arguments: SandboxRun) -> int:
    limits = Limits(seconds=arguments.seconds, memory_bytes=arguments.memory_mib * 2**20)
    tests = split_tests(terminal.read_text_file(arguments.tests), str(arguments.tests)) if arguments.tests else []
    code = terminal.read_text_file(arguments.file)
    result = sandbox.run(code, tests, limits, executor=arguments.executor, allow_unsafe=arguments.allow_unsafe_exec)
    for number, test in enumerate(result.tests, 1):
        line = tests[number - 1].splitlines()[-1] if tests else "the program"
        print(f"{number:3d}  {test.outcome:13s}  {line}{f'  # {test.detail}' if test.detail else ''}")
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text.strip():
            print(f"--- {name}\n{text.rstrip()}")
    contained = "NOT CONTAINED" if result.unsafe else f"contained by {result.tier}"
    print(f"{result.outcome}: {result.share:.0%} of {len(result.tests)}, {contained}")
    return 0 if result.passed else 1
