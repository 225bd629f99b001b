"""Prompts as published, and the program in an answer."""

import dataclasses
from pathlib import Path

import pytest

from jax_lm import model_source
from jax_lm.evaluation.problems import Problem, humaneval, mbpp
from jax_lm.evaluation.prompting import (
    ChatPrompting,
    CompletionPrompting,
    choose_prompting,
    extract_answer,
)
from jax_lm.model_source import is_instruct
from jax_lm.options import GenerationOptions

PROMPT = 'from math import sqrt\n\n\ndef root(x):\n    """ The root of x.\n    """\n'
RECORD = {
    "task_id": "HumanEval/1000",
    "entry_point": "root",
    "prompt": PROMPT,
    "canonical_solution": "    return sqrt(x)\n",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n",
}
MBPP = {"task_id": 7, "text": "Write a function to add one.", "code": "def f(x):\n    return x + 1",
        "test_list": ["assert f(1) == 2", "assert f(2) == 3"]}  # fmt: skip


def gap(prefix="def double(x):\n    return ", suffix="\n", canonical="x * 2"):
    return Problem("gap", "gaps", prefix, suffix, ("assert double(3) == 6",), canonical)


def chat_prompt(engine, problem):
    (template,) = ChatPrompting().templates(engine, problem, GenerationOptions(max_new_tokens=16))
    prompt, length = template.parts
    assert length == 16
    return prompt


def test_chat_prompt_of_humaneval_is_the_published_one(engine):
    expected = (
        "<|im_start|>user\nPlease complete the following problem:\n"
        f"```\n{PROMPT.strip()}\n```\n<|im_end|>\n<|im_start|>assistant\n"
        "Here is the code to solve this problem:\n```python\n"
    )
    assert chat_prompt(engine, humaneval(RECORD)).endswith(expected)


def test_chat_prompt_of_mbpp_is_the_published_one(engine):
    expected = (
        '<|im_start|>user\n```\n"""\nWrite a function to add one.\nassert f(1) == 2\n"""\n```\n<|im_end|>\n'
        "<|im_start|>assistant\nHere is the code to solve this problem:\n```python\n"
    )
    assert chat_prompt(engine, mbpp(MBPP)).endswith(expected)


def test_base_models_complete_the_raw_prompt(engine):
    (template,) = CompletionPrompting().templates(
        engine, humaneval(RECORD), GenerationOptions(max_new_tokens=16)
    )
    assert template.parts == (PROMPT, 16, "")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("def f():\n    pass\n```", "def f():\n    pass\n"),
        ("def f():\n    pass\n```\nIt does nothing.\n```python\nf()\n```", "def f():\n    pass\n"),
        ("def f():\n    pass\n", "def f():\n    pass\n"),
        ("```python\ndef f():\n    pass\n```\n", "def f():\n    pass\n"),
        ("\n```python\nx = 1\n```", "x = 1\n"),
        ("```", ""),
        ("", ""),
    ],
)
def test_code_of_an_answer(answer, code):
    assert extract_answer(answer) == code


def test_a_chat_answer_gets_the_imports_of_its_prompt_and_no_more():
    problem = humaneval(RECORD)
    program = ChatPrompting().program(problem, "def root(x):\n    return sqrt(x)\n```\n")
    assert program == "from math import sqrt\n\n\n\ndef root(x):\n    return sqrt(x)\n"


@pytest.mark.parametrize(
    "after", ["\ndef main():", "\nprint(root(4))", "\n# Test", "\nassert root(4) == 2", "\n```\n"]
)
def test_a_base_completion_ends_where_the_function_does(after):
    problem = humaneval(RECORD)
    program = CompletionPrompting().program(problem, f"    return sqrt(x){after} more")
    assert program == f"{PROMPT}    return sqrt(x)"
    assert CompletionPrompting().program(problem, f"{after[1:]} more") == PROMPT


def test_a_base_completion_of_mbpp_keeps_its_functions_and_drops_its_tests():
    problem = mbpp(MBPP)
    text = "def g():\n    pass\n\ndef f(x):\n    return x + 1"
    assert (
        CompletionPrompting().program(problem, f'{text}\nassert f(1) == 2\n"""')
        == problem.prefix + text
    )


@pytest.mark.parametrize(
    ("prompting", "answer"),
    [
        (CompletionPrompting(), "    return sqrt(x)\n\n\ndef other(x):\n    return 1\n"),
        (ChatPrompting(), "def root(x):\n    return sqrt(x)\n```\nThat is it.\n"),
    ],
)
def test_an_answer_is_over_once_nothing_of_the_rest_is_kept(prompting, answer):
    problem = humaneval(RECORD)
    over = [size for size in range(len(answer)) if prompting.is_over(problem, answer[:size])]
    assert 0 < len(over) < len(answer) - 10
    for size in over:
        assert prompting.program(problem, answer[:size]) == prompting.program(problem, answer)
    assert not CompletionPrompting().is_over(gap(), answer)


def test_lengths_of_a_gap(engine):
    options = GenerationOptions(max_new_tokens=16)

    def lengths(middle_length):
        return [
            template.parts[1]
            for template in CompletionPrompting(middle_length).templates(engine, gap(), options)
        ]

    assert lengths(None) == [16]
    assert lengths(5) == [5]
    assert lengths("auto") == [4, 8, 12, 16]
    assert lengths("oracle") == [len(engine.tokenizer.encode("x * 2"))]
    with pytest.raises(ValueError, match="middle_length='long'"):
        lengths("long")


def test_a_gap_keeps_what_a_function_may_not():
    problem = dataclasses.replace(gap(), stops=())
    assert (
        CompletionPrompting().program(problem, "x\n# more")
        == "def double(x):\n    return x\n# more\n"
    )


def test_the_built_in_model_counts_as_a_base_model(engine):
    assert not is_instruct(engine.source.folder, engine.tokenizer)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("models--Dream-org--Dream-v0-Instruct-7B/snapshots/1f2e", True),
        ("models/Dream-Coder-v0-Instruct-7B", True),
        ("models--Dream-org--Dream-v0-Base-7B/snapshots/1f2e", False),
        ("instructed/Dream-v0-Base-7B", False),
    ],
)
def test_instruct_models_without_a_padding_token_are_known_by_name(
    engine, monkeypatch, folder, expected
):
    # Dream's tokenizers have a chat template, and no such token.
    monkeypatch.setattr(model_source, "DIFFUSION_PAD", "<|absent|>")
    assert is_instruct(Path(folder), engine.tokenizer) == expected


def test_questions_are_asked_in_chat_where_it_is_wanted(engine, monkeypatch):
    question = humaneval(RECORD)
    assert choose_prompting(engine, [question], 5, chat=False, base=False) == CompletionPrompting(5)
    assert choose_prompting(engine, [question], None, chat=True, base=False) == ChatPrompting()
    assert (
        choose_prompting(engine, [question, gap()], None, chat=True, base=False)
        == CompletionPrompting()
    )
    assert choose_prompting(engine, [question], None, chat=True, base=True) == CompletionPrompting()
    # an instruct model is asked so without being told
    monkeypatch.setattr("jax_lm.evaluation.prompting.is_instruct", lambda *_: True)
    assert choose_prompting(engine, [question], None, chat=False, base=False) == ChatPrompting()
