"""Make the samples that adapt Qwen2.5-Coder-0.5B to blocks: prompts from code that a Python
installation has, answers by the model itself.

    python experiments/adaptation.py prompts FOLDER
    python experiments/adaptation.py answers FOLDER --model Qwen/Qwen2.5-Coder-0.5B-Instruct
    python experiments/adaptation.py start FOLDER --model Qwen/Qwen2.5-Coder-0.5B-Instruct
    python experiments/adaptation.py measure FOLDER --name 50-48 --model MODEL --tests HumanEval.jsonl.gz
    python experiments/adaptation.py speed FOLDER --base BASE --model MODEL --adapter ADAPTER --tests HumanEval.jsonl.gz
    python experiments/adaptation.py predict FOLDER --model MODEL --adapter ADAPTER --limit 48

`prompts` writes signatures and docstrings of functions in the standard library and in installed
packages under MIT, BSD, Apache or PSF licences. `answers` lets the model complete them, greedily
and left to right, and keeps the functions that end and parse; a run that was ended goes on.
`start` writes the model with a mask token and attention in blocks, and its weights as they are.
`measure` writes pass@1 and tokens per forward pass on HumanEval. A forward pass counts for an answer
if it decided a token of it, as those of a batch of one would. With drafts, problems are decoded one
by one, and all passes count. `predict` prints how often the first, second, … position of a block is
predicted right where the text before the block is given and the block is masks, on the last answers.
`speed` times one prompt at a time, the base and 1, 2, 3 drafts in turns.
experiments/adaptation.sh trains and measures; the protocol is docs/results/adaptation.
"""

import ast
import gzip
import json
import random
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.evaluation.attempts import COMPLETION, Evaluator, execute_attempts, problem_executor
from jax_lm.evaluation.problems import FUNCTION_STOPS, suite_problems
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.results import Generation
from jax_lm.templates import Template
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.masked_diffusion import predict_blocks

PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation)\b", re.IGNORECASE)
DOCSTRING_LENGTHS = range(40, 500)
PROMPT_TOKENS, BODY_TOKENS, NEW_TOKENS, BATCH, MEASURED = 128, 256, 96, 64, 12
MOST_TOKENS = PROMPT_TOKENS + BODY_TOKENS


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the name of a licence, and a file under it."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(standard.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in str(path.relative_to(standard)):
            yield "PSF", path
    for distribution in metadata.distributions():
        fields = distribution.metadata
        named = ("License-Expression", "License", "Classifier")
        said = [line for name in named for line in fields.get_all(name) or ()]
        said = [line for line in said if "::" not in line or line.startswith("License")]
        licence = PERMISSIVE.search(" ".join(said)[:500])
        if licence is None or fields["Name"] == "jax-diffucoder":
            continue
        for file in distribution.files or ():
            if file.suffix == ".py" and "test" not in str(file):
                yield licence[0].upper(), Path(str(distribution.locate_file(file)))


def functions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the public functions of a file: signature with docstring, and body."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    lines = text.splitlines()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        docstring = ast.get_docstring(node, clean=False)
        if docstring is None or len(docstring) not in DOCSTRING_LENGTHS or len(node.body) < 2:
            continue
        # def f(x):          line 1
        #     """Say."""     line 2: the docstring's node ends here
        #     return x
        end = node.body[0].end_lineno
        header = "\n".join(lines[node.lineno - 1 : end]) + "\n"
        # "def f(): pass" on one line, or code behind the docstring
        if header.rstrip().endswith(('"""', "'''")) and header.startswith("def "):
            yield header, "\n".join(lines[end : node.end_lineno]) + "\n"


def write_prompts(folder: Path, tokenizer: DiffuCoderTokenizer, tests: tuple[Path, ...]) -> None:
    """Write prompts.jsonl and code.jsonl, in random order, without the tested tasks' names.

    code.jsonl has the functions whose prompts and bodies are short enough, as people wrote them.
    """
    tested: set[str] = set()
    for path in tests:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            tested |= set(re.findall(r"def (\w+)\(", file.read()))
    licences: Counter[str] = Counter()
    bodies: dict[str, str] = {}
    for licence, path in sources():
        for header, body in functions(path):
            name = header[4 : header.index("(")]
            short = len(tokenizer.encode(header)) <= PROMPT_TOKENS
            if short and name not in tested and header not in bodies:
                bodies[header] = body
                licences[licence] += 1
    prompts = sorted(bodies)
    random.Random(0).shuffle(prompts)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    counts = Counter({"prompts": len(prompts), "names": len(tested)})
    with (folder / "code.jsonl").open("w", encoding="utf-8") as file:
        for prompt in prompts:
            count = len(tokenizer.encode(bodies[prompt]))
            if count <= BODY_TOKENS:
                file.write(json.dumps({"prompt": prompt, "response": bodies[prompt]}) + "\n")
                counts.update(functions=1, tokens=count)
    print(json.dumps({**counts, "licences": licences}))


def is_over(answer: str) -> bool:
    """Whether a function has ended: what follows is not indented."""
    return any(stop in answer for stop in FUNCTION_STOPS)


def body(prompt: str, answer: str) -> str | None:
    """Return the body that an answer begins with; None if it does not end, or does not parse."""
    ends = [answer.index(stop) for stop in FUNCTION_STOPS if stop in answer]
    body = answer[: min(ends)] if ends else None
    if not body or not body.strip():
        return None
    body = body.rstrip() + "\n"
    try:
        function, *others = ast.parse(prompt + body).body
    except (SyntaxError, ValueError):
        return None
    is_function = isinstance(function, ast.FunctionDef) and len(function.body) > 1
    return body if is_function and not others else None


def write_answers(folder: Path, model: str) -> None:
    """Append the model's answers to answers.jsonl, a batch at a time."""
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    done, answers = folder / "answered.txt", folder / "answers.jsonl"
    first = int(done.read_text()) if done.is_file() else 0
    engine = DiffuCoderInference(model)
    options = GenerationOptions(max_new_tokens=NEW_TOKENS, temperature=0.0)
    for begin in range(first, len(prompts) - BATCH + 1, BATCH):
        batch = prompts[begin : begin + BATCH]
        templates = [Template.infilling(prompt, NEW_TOKENS, "") for prompt in batch]
        decoded = engine.decode(templates, options, ends=[is_over] * BATCH)
        kept = 0
        with answers.open("a", encoding="utf-8") as file:
            for prompt, row in zip(batch, decoded.rows, strict=True):
                completion = row.text + ("\ndef " if row.stopped else "")
                if (found := body(prompt, completion)) is not None:
                    kept += 1
                    file.write(json.dumps({"prompt": prompt, "response": found}) + "\n")
        done.write_text(str(begin + BATCH))
        print(f"{begin + BATCH}: kept {kept}, {decoded.forwards} forwards, {decoded.seconds:.1f} s")
        sys.stdout.flush()


def write_start(folder: Path, model: str, block_length: int, is_causal: bool) -> None:
    """Write the model that training starts from: `adapt --block-length` before its first update."""
    source = Path(model)
    tokenizer = DiffuCoderTokenizer.from_pretrained(source, adds_mask=True)
    config = DreamForCausalLM.read_config(source)
    config = config.for_diffusion(tokenizer.mask_id, tokenizer.pad_id, tokenizer.vocab_size)
    started = DreamForCausalLM.from_pretrained(source, dtype=jnp.bfloat16)
    started.become(config.with_blocks(block_length, is_causal))
    name = f"start-{block_length}{'-causal' if is_causal else ''}"
    started.save_pretrained(folder / name, dtype="bfloat16", tokenizer=tokenizer, source=source)


def kept_tokens(tokenizer: DiffuCoderTokenizer, row: Generation, text: str) -> int:
    """Return how many tokens of an answer write `text`, its beginning."""
    # tokens "    return", " x", "\n", "def" and text "    return x" -> 2
    count = 0
    while count < len(row.token_ids):
        if len(tokenizer.decode(list(row.token_ids[:count]))) >= len(text):
            break
        count += 1
    return count


def measure(
    engine: DiffuCoderInference, tests: Path, limit: int, options: GenerationOptions
) -> dict[str, Any]:
    """Decode and judge problems of HumanEval; return the counts of each."""
    problems, _ = suite_problems("humaneval", tests, limit)
    executor = problem_executor("auto")
    evaluator = Evaluator(engine=engine, executor=executor, options=options, batch_size=MEASURED)
    # Blocks are counted from the start of a text: prompts of a batch end at the same place in a block.
    block = engine.config.block_size or 1
    drafts = sorted(
        evaluator.drafts(problems), key=lambda draft: (draft.width % block, draft.width)
    )
    size = 1 if options.draft else MEASURED
    batches = [
        group[begin : begin + size]
        for _, drafts_of in groupby(drafts, key=lambda draft: draft.width % block)
        for group in [list(drafts_of)]
        for begin in range(0, len(group), size)
    ]
    found: dict[str, list] = {"name": [], "passed": [], "tokens": [], "passes": []}
    for batch in batches:
        ends = [partial(COMPLETION.is_over, draft.attempt.problem) for draft in batch]
        decoded = engine.decode([draft.templates[0] for draft in batch], options, ends=ends)
        attempts = []
        for draft, row in zip(batch, decoded.rows, strict=True):
            problem = draft.attempt.problem
            program = COMPLETION.program(problem, row.text)
            attempts.append(replace(draft.attempt, program=program, completion=row.text))
            count = kept_tokens(engine.tokenizer, row, problem.filling(row.text))
            passes = len(set(row.commit_step[:count]))
            if options.draft:
                # their commit steps are those of left to right
                count, passes = len(row.token_ids), decoded.forwards
            found["tokens"].append(count)
            found["passes"].append(passes)
        for attempt in execute_attempts(executor, attempts):
            found["name"].append(attempt.problem.name)
            found["passed"].append(int(attempt.passed))
        tokens, passes = sum(found["tokens"]), sum(found["passes"])
        print(
            f"{len(found['name'])} of {len(drafts)}: {sum(found['passed'])} passed, {tokens} tokens "
            f"in {passes} passes, {decoded.forwards} forwards, {decoded.seconds:.0f} s"
        )
        sys.stdout.flush()
    return found


def predicted(engine: DiffuCoderInference, answers: Path, limit: int) -> list[float]:
    """Return the share of right predictions at each position of a block, over the last answers."""
    length = engine.config.block_size
    assert length
    sampler = engine.sampler

    @jax.jit
    def predict(params, tokens):
        model = sampler.graph.merge(params)
        masks = jnp.full_like(tokens, sampler.mask_id)
        hidden = predict_blocks(model, masks, tokens, jnp.zeros_like(tokens), length, False)
        return jnp.argmax(model.logits(hidden), axis=-1)

    right, count = np.zeros(length, int), np.zeros(length, int)
    for line in answers.read_text(encoding="utf-8").splitlines()[-limit:]:
        row = json.loads(line)
        prompt = len(engine.tokenizer.encode(row["prompt"]))
        ids = [*engine.tokenizer.encode(row["prompt"]), *engine.tokenizer.encode(row["response"])]
        tokens = np.zeros((1, MOST_TOKENS), np.int32)
        tokens[0, : len(ids)] = ids
        found = np.asarray(predict(sampler.params, tokens))[0]
        columns = np.arange(prompt, len(ids))
        np.add.at(right, columns % length, found[columns] == ids[prompt:])
        np.add.at(count, columns % length, 1)
    return (right / count).round(3).tolist()


def compare_speed(
    base: DiffuCoderInference, engine: DiffuCoderInference, tests: Path, limit: int
) -> None:
    """Print tokens and passes per second of the same answers: of the base, and with drafts, in turns."""
    problems, _ = suite_problems("humaneval", tests, limit)
    greedy = GenerationOptions(max_new_tokens=96, temperature=0.0, early_stop=False)
    methods = {"base": (base, greedy)}
    for draft in range(1, engine.config.block_size or 0):
        options = replace(greedy, draft=draft, decoding=Decoding(cache="causal"))
        methods[f"{draft} drafts"] = engine, options
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for problem in problems:
        template = Template.infilling(problem.prefix, 96, "")
        for is_warm in (False, True, True):
            for name, (engine, options) in methods.items():
                decoded = engine.decode([template], options)
                if is_warm:
                    seconds = decoded.run_seconds
                    rates[name].append((96 / seconds, decoded.forwards / seconds))
    for name, found in rates.items():
        tokens, passes = np.median(found, axis=0)
        print(f"{name}: {tokens:.1f} tokens/s, {passes:.1f} passes/s, median of {len(found)} runs")


def table(counts: dict[str, dict[str, list]]) -> str:
    """Write the measures as rows of a table."""
    lines = ["| measure | problems | passed | tokens per forward pass |", "|---|---|---|---|"]
    for name, found in counts.items():
        passed, total = sum(found["passed"]), len(found["passed"])
        rate = sum(found["tokens"]) / sum(found["passes"])
        lines.append(f"| {name} | {total} | {passed} ({passed / total:.1%}) | {rate:.2f} |")
    return "\n".join(lines)


def main(
    stage: Positional[
        Literal["prompts", "answers", "start", "measure", "predict", "speed", "table"]
    ],
    folder: Positional[Path],
    model: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    tests: tuple[Path, ...] = (),
    block_length: int = 4,
    attention: Literal["blocks", "causal"] = "blocks",
    adapter: Path | None = None,
    name: str = "base",
    limit: int = 48,
    threshold: float = 0.9,
    draft: int = 0,
    base: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct",
) -> None:
    """Run one stage.

    Args:
        stage: what to write.
        folder: for all that is written.
        model: the base.
        tests: files of test tasks, whose function names are left out.
        block_length: of the model to start from.
        attention: of the model to start from, as in `adapt --attention`.
        adapter: of the measured model.
        name: of the measure.
        limit: number of problems, evenly spread.
        threshold: probability above which a block commits a token.
        draft: tokens that masks draft and the next pass verifies, instead of the threshold.
        base: the autoregressive model whose speed is compared.
    """
    if stage == "prompts":
        write_prompts(folder, DiffuCoderTokenizer.from_pretrained(model), tests)
    elif stage == "answers":
        write_answers(folder, model)
    elif stage == "start":
        write_start(folder, model, block_length, attention == "causal")
    elif stage == "table":
        print(table(json.loads((folder / "counts.json").read_text(encoding="utf-8"))))
    elif stage == "predict":
        engine = DiffuCoderInference(model, dtype="bfloat16", adapter=adapter)
        print(json.dumps(predicted(engine, folder / "answers.jsonl", limit)))
    elif stage == "speed":
        engine = DiffuCoderInference(model, dtype="bfloat16", adapter=adapter)
        compare_speed(DiffuCoderInference(base, dtype="bfloat16"), engine, tests[0], limit)
    else:
        engine = DiffuCoderInference(model, dtype="bfloat16", adapter=adapter)
        options = GenerationOptions(max_new_tokens=256, temperature=0.0)
        if not engine.is_autoregressive:
            commit = {"commit": "threshold", "threshold": threshold, "cache": "window"}
            decoding = Decoding(block_length=engine.config.block_size, **commit)
            options = replace(options, top_p=None, top_k=None, decoding=decoding)
            if draft:
                options = replace(options, draft=draft, decoding=Decoding(cache="causal"))
            if engine.config.is_causal:
                options = replace(options, alg="left_to_right")
        found = measure(engine, tests[0], limit, options)
        counts = folder / "counts.json"
        stored = json.loads(counts.read_text()) if counts.is_file() else {}
        counts.write_text(json.dumps(stored | {f"{name}-{limit}": found}) + "\n")


if __name__ == "__main__":
    run_main(main)
