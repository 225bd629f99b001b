"""Problems: what is held out, and what is read from benchmark files.

Whole files: tests/test_benchmarks.py.
"""

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from jax_lm.evaluation.attempts import Attempt, execute_attempts
from jax_lm.evaluation.problems import (
    file_problems,
    humaneval,
    load_held_out_problems,
    mbpp,
    suite_problems,
)
from untrusted import Local

RECORDS = [
    {
        "task_id": f"SingleLineInfilling/HumanEval/{number}/L1",
        "entry_point": "add",
        "prompt": f"def add(a, b):\n    c = {number}\n",
        "suffix": "    return total\n",
        "canonical_solution": "    total = a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    for number in range(10)
]


ANYWHERE = Local(allow_unsafe=True, packages=("numpy",))
"""These programs are our own: they may run where nothing contains them."""


def outcomes(problems, middles):
    return [
        attempt.outcome
        for attempt in execute_attempts(
            ANYWHERE,
            [
                Attempt(problem, problem.program(problem.filling(middle)))
                for problem, middle in zip(problems, middles, strict=True)
            ],
        )
    ]


def written(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_held_out_problems_are_distinct():
    problems = load_held_out_problems(200)
    assert len({problem.prefix + problem.canonical for problem in problems}) > 150
    assert len({problem.name for problem in problems}) == 200
    assert len({problem.name.split("/")[0] for problem in problems}) > 80
    assert load_held_out_problems(20) == problems[:20]


def test_canonical_bodies_pass_and_empty_bodies_fail():
    problems = random.Random(0).sample(load_held_out_problems(300), 100)
    assert outcomes(problems, [problem.canonical for problem in problems]) == ["passed"] * 100
    assert "passed" not in outcomes(problems, [problem.empty for problem in problems])


@pytest.mark.parametrize("name", ["problems.jsonl", "problems.jsonl.gz"])
def test_infilling_file_is_read_and_its_middles_pass(tmp_path, name):
    problems = file_problems("infilling", written(tmp_path / name, RECORDS))
    assert [problem.name for problem in problems] == [record["task_id"] for record in RECORDS]
    assert {problem.group for problem in problems} == {"SingleLineInfilling"}
    middles = [problems[0].canonical, "    total = a - b\n", ""]
    assert outcomes(problems[:1] * 3, middles) == ["passed", "failed", "failed"]


def test_a_line_ends_where_it_ends(tmp_path):
    problem = file_problems("infilling", written(tmp_path / "problems.jsonl", RECORDS))[0]
    assert problem.filling("    total = 1\n    more = 2\n") == "    total = 1\n"


def test_a_limit_is_spread_over_the_file(tmp_path):
    problems, total = suite_problems("infilling", written(tmp_path / "problems.jsonl", RECORDS), 5)
    assert total == 10
    assert [problem.name for problem in problems] == [
        RECORDS[number]["task_id"] for number in (0, 2, 4, 6, 8)
    ]
    assert len(suite_problems("infilling", tmp_path / "problems.jsonl", 99)[0]) == 10


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "contains no problems"),
        (b"\n{", "line 2: not JSON"),
        ((json.dumps(RECORDS[0]) + "\n").encode() * 2, "line 2: repeats '[^']*/L1': not infilling"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b"[1]", "line 1: expected a JSON object, not list"),
        (b"\xff\xfe", "line 1: not UTF-8"),
        (json.dumps(RECORDS[0] | {"suffix": 3}).encode(), "line 1: has no text 'suffix'"),
        (b'{"task_id": "a"}', "line 1: has no text 'entry_point'"),
        # in the prompt, the error named no line; in the tests, every answer failed
        (json.dumps(RECORDS[0] | {"prompt": "\ud800"}).encode(), "line 1: not Unicode text"),
        (json.dumps(RECORDS[0] | {"test": "'\ud800'"}).encode(), "line 1: not Unicode text"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, content, named):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named) as error:
        file_problems("infilling", path)
    assert str(path) in str(error.value)


def test_a_byte_order_mark_costs_no_problem(tmp_path):
    path = written(tmp_path / "problems.jsonl", RECORDS)
    problems = file_problems("infilling", path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert file_problems("infilling", path) == problems


def test_blank_lines_hold_no_problem(tmp_path):
    path = written(tmp_path / "problems.jsonl", RECORDS)
    problems = file_problems("infilling", path)
    path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\n \n") + b"\n")
    assert file_problems("infilling", path) == problems


def test_truncated_and_missing_files_are_refused(tmp_path):
    path = written(tmp_path / "problems.jsonl.gz", RECORDS)
    path.write_bytes(path.read_bytes()[:-20])
    for bad in (path, tmp_path / "none.jsonl"):
        with pytest.raises(ValueError, match="cannot be read"):
            file_problems("infilling", bad)


@pytest.mark.parametrize(
    "read",
    [load_held_out_problems, lambda count: suite_problems("humaneval", Path("unused"), count)],
)
def test_limits_below_one_are_named(read):
    with pytest.raises(ValueError, match="limit=0"):
        read(0)


HUMANEVAL = {
    "task_id": "HumanEval/1",
    "entry_point": "add",
    "prompt": 'import math\n\ndef add(a, b):\n    """ The sum. """\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
PLUS = HUMANEVAL | {
    "test": "import numpy as np\n\ndef check(candidate):\n    inputs = [[1, 2], [0.1, 0.2]]\n    results = [3, 0.3]\n"
    "    for inp, exp in zip(inputs, results):\n        assert np.allclose(candidate(*inp), exp)\n"
}
MBPP = {
    "task_id": 367,
    "text": "Write a function to read a node.",
    "code": "class Node:\r\n\tdef __init__(self, data):\r\n\t\tself.data = data\r\n"
    "def read(node):\r\n\treturn node.data",
    "test_setup_code": "root = Node(1)\r\nother = Node(2)",
    "test_list": ["assert read(root) == 1", "assert read(other) == 2"],
}
SANITIZED = {
    "task_id": 2,
    "prompt": "Write a function to round down.",
    "code": "def down(x):\n    return int(x)",
    "test_imports": ["import math"],
    "test_list": ["assert down(math.pi) == 3"],
}
MBPP_PLUS = SANITIZED | {"test": "import numpy as np\nassert np.allclose(down(2.5), 2)\n"}
FORMATS = {
    "humaneval": [HUMANEVAL],
    "humaneval+": [PLUS],
    "mbpp": [MBPP, SANITIZED],
    "mbpp+": [MBPP_PLUS],
}


@pytest.mark.parametrize("suite", FORMATS)
def test_canonical_solutions_of_each_format_pass_and_empty_ones_fail(tmp_path, suite):
    problems = file_problems(suite, written(tmp_path / "data.jsonl", FORMATS[suite]))
    assert outcomes(problems, [problem.canonical for problem in problems]) == ["passed"] * len(
        problems
    )
    assert outcomes(problems, [problem.empty for problem in problems]) == ["failed"] * len(problems)


def test_mbpp_shows_its_first_test():
    problem = mbpp(SANITIZED)
    assert (
        problem.prefix == '"""\nWrite a function to round down.\nassert down(math.pi) == 3\n"""\n'
    )
    assert problem.name == "MBPP/2"


def test_known_flaws_of_generated_tests_are_mended():
    broken = (
        "import math\ndef _poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n"
        + (
            "def check(candidate):\n    inputs = [[[1, 2]], [[-6, 3]]]\n    inputs = [[[1, 2]], [[-6, 3]]]\n"
            "    for inp in inputs:\n        assert _poly(*candidate(*inp), inp) <= 0.0001\n"
        )
    )
    record = PLUS | {"test": broken, "canonical_solution": "    return -a[0] / a[1]\n"}
    record["prompt"] = record["prompt"].replace("a, b", "a")
    wrong = "    return -99\n"
    problems = [humaneval(record | {"task_id": "HumanEval/32"}, plus=True)] * 2
    assert outcomes(problems, [problems[0].canonical, wrong]) == ["passed", "failed"]
    unchecked = "def assertion(out, exp):\n    exact_match = exp == (out is not None)\nassertion(down(1), False)"
    record = MBPP_PLUS | {"task_id": 737, "test": unchecked}
    assert outcomes([mbpp(record, plus=True)], ["def down(x):\n    return 1"]) == ["failed"]


CONTEST = {
    "question_id": "abc301_a",
    "question_content": 'Add two numbers.\n\\underline{"""Input"""}: a b',
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "4 5\n", "output": "9", "testtype": "stdin"}]),
    "metadata": "{}",
}
LEETCODE = CONTEST | {
    "question_id": "2727",
    "starter_code": "class Solution:\n    def add(self, a: List[int]) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "[1, 2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": "[]",
    "metadata": json.dumps({"func_name": "add"}),
}


def test_contests_are_solved_by_completion_and_in_chat(tmp_path):
    problems = file_problems("livecodebench", written(tmp_path / "test.jsonl", [CONTEST, LEETCODE]))
    assert [problem.name for problem in problems] == ["abc301_a", "2727"]
    assert [len(problem.tests) for problem in problems] == [2, 1]
    right = [
        "print(sum(map(int, input().split())))\n```\nThat adds.",
        "return reduce(lambda x, y: x + y, a)\n",
    ]
    assert outcomes(problems, right) == ["passed", "passed"]
    assert outcomes(problems, ["print(3)\n", "return 4\n"]) == ["failed", "failed"]
    assert outcomes(problems, [problem.empty for problem in problems]) == ["failed", "failed"]
    answer = "class Solution:\n    def add(self, a: List[int]) -> int:\n        return sum(a)\n"
    (chat,) = execute_attempts(
        ANYWHERE, [Attempt(problems[1], f"{problems[1].preamble}\n{answer}")]
    )
    assert chat.passed, chat.detail
    assert "reads standard input" in problems[0].question
    assert "Complete this class:\n```python\nclass Solution:" in problems[1].question


@pytest.mark.parametrize(
    ("suite", "record", "named"),
    [
        (
            "livecodebench",
            CONTEST | {"public_test_cases": "["},
            "cannot be judged (column 'public_test_cases' must",
        ),
        (
            "livecodebench",
            CONTEST | {"public_test_cases": "", "private_test_cases": ""},
            "has no test",
        ),
        ("livecodebench", HUMANEVAL, "has no text 'question_content'"),
        ("humaneval+", HUMANEVAL, "has only the original tests"),
        ("humaneval", PLUS, "has generated tests"),
        (
            "humaneval",
            HUMANEVAL | {"entry_point": "sub"},
            "has a prompt without the function 'sub'",
        ),
        ("humaneval", MBPP, "has no text 'task_id'"),
        ("mbpp", HUMANEVAL, "has no text 'code'"),
        ("mbpp", MBPP | {"test_list": []}, "has no test in 'test_list'"),
        ("mbpp", MBPP | {"test_list": [1]}, "has no list of texts 'test_list'"),
        ("mbpp", MBPP | {"code": "def f("}, "has code that is not Python"),
        ("mbpp+", MBPP, "has no text 'test'"),
    ],
)
def test_a_file_of_another_benchmark_is_refused(tmp_path, suite, record, named):
    path = written(tmp_path / "data.jsonl", [record])
    with pytest.raises(ValueError, match=re.escape(f"{path}: line 1: {named}")):
        file_problems(suite, path)
