"""Tests of a row: the columns of published data sets, as they are published."""

import base64
import json
import pickle
import zlib

import pytest

from jax_lm import rewards
from jax_lm.rewards.cases import MAX_UNPACKED, TEST_COLUMNS, row_tests
from untrusted import Case

SUM = "```python\nprint(sum(map(int, input().split())))\n```"
NOTHING = "```python\npass\n```"
METHOD = "```python\nclass Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return sum(a) + b\n```"


def packed(value):
    """Pack as LiveCodeBench does."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def packed_text(pickled):
    return base64.b64encode(zlib.compress(pickled)).decode()


def benchmark_row(public, private, kind, name=None):
    """A row as `livecodebench/code_generation_lite` has them."""

    def cases(pairs):
        return json.dumps(
            [{"input": given, "output": right, "testtype": kind} for given, right in pairs]
        )

    return {
        "question_title": "Sum",
        "question_content": "Add numbers.",
        "platform": "atcoder",
        "question_id": "abc301_a",
        "contest_id": "abc301",
        "contest_date": "2023-05-13T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": cases(public),
        "private_test_cases": packed(cases(private)),
        "metadata": json.dumps({"func_name": name} if name else {}),
    }


STDIN = benchmark_row([("1 2\n", "3\n")], [("4 5\n", "9"), ("0 0\n", "0\n")], "stdin")
FUNCTIONAL = benchmark_row([("[1, 2]\n3", "6")], [("[]\n0", "0")], "functional", "add")
OPEN_R1 = {
    "language": "python",
    "test_cases": [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout", "fn_name": None}],
}
ROWS = {
    "asserts": ({"test_cases": ["assert f(1) == 1"]}, ["assert f(1) == 1"]),
    "asserts as JSON": ({"test_cases": '["assert f(1) == 1"]'}, ["assert f(1) == 1"]),
    "LiveCodeBench": (STDIN, [Case("1 2\n", "3\n"), Case("4 5\n", "9"), Case("0 0\n", "0\n")]),
    "LiveCodeBench, functional": (
        FUNCTIONAL, [Case("[1, 2]\n3", "6", "exact", "add"), Case("[]\n0", "0", "exact", "add")]
    ),
    "LiveCodeBench, private as JSON": (
        {"private_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'}, [Case("1", "2")]
    ),
    "APPS": ({"input_output": '{"inputs": ["1 2\\n"], "outputs": ["3\\n"]}'}, [Case("1 2\n", "3\n")]),
    "APPS with lines": (
        {"input_output": {"inputs": [["1", "2"]], "outputs": [["3", "4"]]}}, [Case("1\n2", "3\n4")]
    ),
    "TACO": (
        {"input_output": '{"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [[3]]}'},
        [Case('[1, 2]\n"a"', "[3]", "tolerant", "f")],
    ),
    "no name is no call": ({"input_output": {"fn_name": None, "inputs": ["1"], "outputs": ["2"]}}, [Case("1", "2")]),
    "open-r1": ({"verification_info": OPEN_R1}, [Case("1 2\n", "3\n")]),
    "open-r1 as JSON": ({"verification_info": json.dumps(OPEN_R1)}, [Case("1 2\n", "3\n")]),
    "open-r1, a call": (
        {"test_cases": [{"input": [1], "output": [2], "type": "function_call", "fn_name": "f"}]},
        [Case("1", "[2]", "tolerant", "f")],
    ),
    "both kinds": (
        {
            "test_cases": ["assert True", {"input": "a", "output": "b"}],
            "input_output": {"inputs": ["c"], "outputs": ["d"]},
        },
        ["assert True", Case("a", "b"), Case("c", "d")],
    ),
    "nothing": (dict.fromkeys(TEST_COLUMNS, ""), []),
    "none": (dict.fromkeys(TEST_COLUMNS), []),
    "other columns": ({"tests": ["assert True"], "metadata": "not JSON"}, []),
    "empty lists": ({"test_cases": [], "input_output": {"inputs": [], "outputs": []}}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_columns_of_data_sets(name):
    row, expected = ROWS[name]
    assert row_tests(row) == expected


class Harmful:
    """What a pickle may do: the error would be another one if it were done."""

    def __reduce__(self):
        return exec, ("import tests_of_a_pickle",)


BAD = {
    "inputs without outputs": ({"input_output": {"inputs": ["1"]}}, "column 'input_output' must hold an object with"),
    "of other length": ({"input_output": {"inputs": ["1"], "outputs": []}}, "inputs and outputs, equally long"),
    "no JSON": ({"input_output": "{"}, "column 'input_output' must hold data or JSON, not '{'"),
    "a number": ({"public_test_cases": 3}, "column 'public_test_cases' must hold lists of cases with input and output"),
    "asserts elsewhere": ({"public_test_cases": ["assert True"]}, "must hold lists of cases with input and output"),
    "a case without output": ({"test_cases": [{"input": "a"}]}, "a case with output=None: must be text"),
    "input that is no text": ({"test_cases": [{"input": 3, "output": ""}]}, "has a case with input=3: must be text"),
    "an unknown type": ({"test_cases": [{"input": "", "output": "", "type": "file"}]}, "a case of type 'file': must"),
    "a call of nothing": ({"public_test_cases": [{"input": "1", "output": "1", "testtype": "functional"}]},
                          "has a call without fn_name, and column 'metadata' without func_name"),
    "a call with a wrong argument": (benchmark_row([("[1", "2")], [], "functional", "f"),
                                     r"input: '\[1' is not a JSON value"),
    "a call with a number": ({"test_cases": [{"input": 3, "output": 3, "type": "function_call", "fn_name": "f"}]},
                             "has a call with input=3 and output=3: must be a list of arguments"),
    "another language": ({"verification_info": OPEN_R1 | {"language": "cpp"}}, "has language='cpp': programs are"),
    "no cases at all": ({"verification_info": {"language": "python"}}, "must hold an object with test_cases"),
    "no base64": ({"private_test_cases": "é"}, "column 'private_test_cases' must hold data or JSON, not 'é'"),
    "no compression": ({"private_test_cases": base64.b64encode(b"abc").decode()}, "damaged: "),
    "cut off": ({"private_test_cases": packed("[" + "1," * 9999 + "1]")[:80]}, "damaged"),
    "a pickle that acts": ({"private_test_cases": packed(Harmful())}, "a pickle with STACK_GLOBAL: it may"),
    "an old pickle that acts": ({"private_test_cases": packed_text(b"cos\nsystem\n(S'true'\ntR.")},
                                "a pickle with GLOBAL"),
    "a pickle of numbers": ({"private_test_cases": packed(3)}, "a pickle with BININT1: it may hold one text"),
    "a pickle of two texts": ({"private_test_cases": packed_text(b"\x80\x04\x8c\x01a\x8c\x01b.")}, "of 2 texts"),
    "no pickle": ({"private_test_cases": packed_text(b"[]")}, "must hold data or JSON"),
    "text that is no JSON": ({"private_test_cases": packed("[")}, "must hold data or JSON"),
    "nested without end": ({"test_cases": "[" * 10**5}, "column 'test_cases' must hold data or JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_line_that_names_row_and_column(name):
    row, message = BAD[name]
    column = next(column for column in TEST_COLUMNS if column in row)
    columns = {key: [None, value] for key, value in row.items()}
    with pytest.raises(ValueError, match=message) as caught:
        rewards.code_reward(["p", "p"], [SUM, SUM], **columns)
    assert str(caught.value).startswith(f"row 1: column '{column}' ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_packed_too_tightly_is_refused(monkeypatch):
    assert MAX_UNPACKED == 2**29
    monkeypatch.setattr("jax_lm.rewards.cases.MAX_UNPACKED", 1000)
    assert row_tests({"private_test_cases": packed("[]" + " " * 900)}) == []
    with pytest.raises(ValueError, match="damaged, or larger than 1000 bytes"):
        row_tests({"private_test_cases": packed("[]" + " " * 2000)})


def test_in_the_real_sandbox():
    rows = [STDIN, FUNCTIONAL, {"input_output": ROWS["APPS"][0]["input_output"]}, {"verification_info": OPEN_R1},
            {"test_cases": ["assert callable(print)", {"input": "1 1", "output": "3"}]}]  # fmt: skip
    columns = {name: [row.get(name) for row in rows] for name in (*TEST_COLUMNS, "metadata")}
    prompts = ["p"] * len(rows)
    assert rewards.code_reward(prompts, [SUM, METHOD, SUM, SUM, SUM], **columns) == [
        1.0,
        1.0,
        1.0,
        1.0,
        0.0,
    ]
    assert rewards.code_reward(prompts, [NOTHING] * 5, **columns) == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert rewards.binary_code_reward(prompts, [SUM] * 5, **columns) == [1.0, 0.0, 1.0, 1.0, 0.0]
    columns = {"prefix": ["def f(a, b):\n"], "input_output": [rows[2]["input_output"]]}
    completion = "    return a + b\nprint(f(*map(int, input().split())))"
    assert rewards.completed_code_reward(["p"], [completion], **columns) == [1.0]


def test_a_kind_that_is_null_is_the_other_one():
    """Arrow fills the fields that a row lacks with null."""
    case = {"input": "1\n", "output": "1\n", "testtype": None, "type": "stdin"}
    (found,) = row_tests({"test_cases": [case]})
    assert found == Case("1\n", "1\n")


def test_rows_without_tests_are_not_applicable():
    total = rewards.weighted_sum({"code": 1.0, "code_format": 1.0})
    columns = {
        "input_output": ["", None, '{"inputs": [], "outputs": []}'],
        "test_cases": [[], None, None],
    }
    assert total(["p"] * 3, [SUM] * 3, **columns) == [1.0, 1.0, 1.0]
