"""Rewards against the recorded reference, and against what must not be rewarded."""

import json
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from cases.reference import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from jax_lm import rewards
from jax_lm.host import terminal
from jax_lm.rewards import REWARDS, WeightedSum, find_reward, weighted_sum
from jax_lm.rewards.code import extract_code, is_well_formed, parses
from jax_lm.rewards.weighted_sum import validate_scores

REFERENCE = json.loads((GOLDEN / "rewards.json").read_text())
GOOD = "Sure.\n```python\ndef f(x):\n    return x\n```\n"
UNPARSEABLE = "Sure.\n```python\ndef f(x)\n    return x\n```\n"
UNFENCED = "def f(x):\n    return x\n"

TRAILING_WHITESPACE = {
    "Sure.\n```python\ndef f(x):\n    return x\n```": (0.0, 1.0),
    "A\n```python\na=1\n```\n\n": (0.0, 1.0),
}
"""All recorded completions that the default mode scores differently: (reference, default)."""


@dataclass(frozen=True)
class Judged:
    """What an executor says of a program."""

    outcome: str
    share: float


def executor(*results, programs=None):
    """An executor that answers in turn, and keeps what it was asked to run."""
    remaining = list(results)

    def run(batch):
        if programs is not None:
            programs.extend(batch)
        return [remaining.pop(0) for _ in batch]

    return run


def score(reward, texts, **columns):
    return reward(["prompt"] * len(texts), texts, **columns)


def recorded(section, key):
    return [case[key] for case in REFERENCE[section]]


# The recorded reference


def test_strict_code_format_equals_the_reference():
    texts = recorded("code", "completion")
    assert score(rewards.code_format_reward, texts, strict_reference=True) == recorded(
        "code", "code_format"
    )


def test_default_code_format_differs_from_the_reference_exactly_where_it_says():
    texts, reference = recorded("code", "completion"), recorded("code", "code_format")
    ours = score(rewards.code_format_reward, texts)
    differing = {text: (a, b) for text, a, b in zip(texts, reference, ours, strict=True) if a != b}
    assert differing == TRAILING_WHITESPACE


def test_extracted_code_equals_the_reference():
    assert [extract_code(text) for text in recorded("code", "completion")] == recorded(
        "code", "extracted"
    )


@pytest.mark.parametrize("name", ["format", "tag_count", "reasoning_steps"])
def test_tag_rewards_equal_the_reference(name):
    assert score(find_reward(name), recorded("tags", "completion")) == recorded("tags", name)


def test_repetition_penalty_equals_the_reference():
    reference = REFERENCE["repetition"]
    reward = find_reward(
        "repetition_penalty",
        ngram_size=reference["ngram_size"],
        max_penalty=reference["max_penalty"],
    )
    texts = [case["completion"] for case in reference["cases"]]
    assert score(reward, texts) == [case["repetition_penalty"] for case in reference["cases"]]


def test_soft_overlong_punishment_equals_the_reference():
    reference = REFERENCE["soft_overlong"]
    reward = rewards.soft_overlong_punishment(
        max_completion_len=reference["max_completion_len"],
        soft_punish_cache=reference["soft_punish_cache"],
    )
    lengths = [case["length"] for case in reference["cases"]]
    scores = score(
        reward, ["text"] * len(lengths), completion_ids=[[7] * length for length in lengths]
    )
    assert scores == [case["reward"] for case in reference["cases"]]


# Code: format


def described(text, language, *, strict_reference):
    """The format as a regular expression: another reading of the same sentence."""
    no_fence = r"(?:(?!```)[\s\S])*"
    end = r"\n" if strict_reference else r"\s*"
    return re.fullmatch(rf"{no_fence}```{language}\n{no_fence}```{end}", text) is not None


@given(
    st.lists(
        st.sampled_from(["```", "`", "python", "\n", "a", " ", "\r", "\t", "\u2028"]), max_size=12
    ),
    st.booleans(),
)
def test_format_is_the_described_one(pieces, strict):
    for text in ("".join(pieces), "".join(["```python\n", *pieces])):
        expected = described(text, "python", strict_reference=strict)
        assert is_well_formed(text, "python", strict_reference=strict) == expected


@pytest.mark.parametrize(
    "text",
    [
        GOOD + GOOD,
        GOOD + "```",
        "```\n```\n" + GOOD,
        "```python\n```\n```",
        GOOD + "```rust\nx\n```\n",
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_more_than_one_block_is_no_format(text, strict):
    assert score(rewards.code_format_reward, [text], strict_reference=strict) == [0.0]


@given(st.text(max_size=30), st.text(alphabet=" \n\t\r", max_size=5))
def test_whatever_the_strict_mode_accepts_the_default_accepts(code, end):
    text = f"```python\n{code}\n```{end}"
    assert is_well_formed(text, "python", strict_reference=True) <= is_well_formed(
        text, "python", strict_reference=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "-" * 100_000 + "1",
        "(" * 100_000,
        "a" + "+a" * 100_000,
        "a" + ".b" * 100_000,
        "'\ud800'",
        "x\0",
        "9" * 9999,
    ],
    ids=["minus", "brackets", "plus", "attributes", "surrogate", "null byte", "digits"],
)
def test_hostile_code_does_not_parse_and_does_no_harm(code):
    assert not parses(code)
    assert score(rewards.code_format_reward, [f"```python\n{code}\n```"]) == [0.5]


@pytest.mark.filterwarnings("error")
def test_a_doubtful_escape_parses_even_where_warnings_are_errors():
    assert parses(r"pattern = '\d'")


def test_code_format_of_another_language_is_not_parsed():
    text = "```rust\nfn main( {\n```"
    assert score(rewards.code_format_reward(language="rust"), [text]) == [1.0]
    assert score(rewards.code_format_reward, [text, GOOD], language="rust") == [1.0, 0.0]
    assert score(rewards.code_format_reward(language="c++"), ["```c++\nint x;\n```"]) == [1.0]
    assert extract_code("```c++\nint x;\n```", "c++") == "int x;\n"


@pytest.mark.parametrize("language", ["", " ", "a`b"])
def test_a_language_that_is_no_word_is_refused(language):
    with pytest.raises(ValueError, match="language must be a word"):
        rewards.code_format_reward(language=language)


# Code: tests


def test_code_reward_is_the_share_of_tests_and_zero_without_format():
    programs = []
    run = executor(Judged("passed", 1.0), Judged("failed", 0.5), programs=programs)
    texts = [GOOD, UNFENCED, UNPARSEABLE, GOOD]
    tests = [
        ["assert f(1) == 1"],
        ["assert True"],
        ["assert True"],
        ["assert f(2) == 2", "assert f(2) == 3"],
    ]
    assert score(rewards.code_reward, texts, test_cases=tests, executor=run) == [1.0, 0.0, 0.0, 0.5]
    assert programs == [
        ("def f(x):\n    return x\n", tests[0]),
        ("def f(x):\n    return x\n", tests[3]),
    ]


@pytest.mark.parametrize("strict", [True, False])
def test_completed_code_is_judged_together_with_what_it_goes_on_from(strict):
    programs = []
    run = executor(Judged("passed", 1.0), Judged("failed", 0.5), programs=programs)
    reward = rewards.completed_code_reward(executor=run, strict_reference=strict)
    prefix = "def f(x):\n"
    columns = {"test_cases": [["assert f(1) == 1"]] * 3, "prefix": [prefix] * 3}
    assert score(reward, ["    return x\n", "    return (\n", "    return 2"], **columns) == [
        1.0,
        0.0,
        0.5,
    ]
    assert [program.strip() for program, _ in programs] == [
        f"{prefix}    return x",
        f"{prefix}    return 2",
    ]


def test_a_program_to_complete_may_contain_fences():
    run = executor(Judged("passed", 1.0))
    prefix = "def f():\n    '''Example:\n    ```\n    f()\n    ```\n    '''\n"
    columns = {"test_cases": [["assert f() == 1"]], "prefix": [prefix]}
    assert score(rewards.completed_code_reward(executor=run), ["    return 1\n"], **columns) == [
        1.0
    ]


def test_columns_may_have_the_names_of_our_parameters():
    total = rewards.weighted_sum({"code_format": 1.0})
    columns = {"prompts": ["x"], "completions": ["y"], "self": ["z"]}
    assert total.score(["p"], [GOOD], **columns).totals == [1.0]


def test_a_score_beyond_all_floats_is_named():
    with pytest.raises(
        ValueError, match=r"reward 'mine' returned 1000.* for completion 0, not a fin"
    ):
        validate_scores("mine", [10**400], 1)


@pytest.mark.parametrize(("strict", "expected"), [(True, 0.0), (False, 1.0)])
def test_code_reward_follows_the_strictness_of_the_format(strict, expected):
    reward = rewards.code_reward(executor=executor(Judged("passed", 1.0)), strict_reference=strict)
    assert score(reward, [GOOD.rstrip()], test_cases=[["assert True"]]) == [expected]


def test_timeouts_and_exhausted_memory_keep_the_share_of_the_other_tests():
    run = executor(Judged("timeout", 0.75), Judged("out_of_memory", 0.25))
    assert score(
        rewards.code_reward, [GOOD] * 2, test_cases=[["assert True"]] * 2, executor=run
    ) == [0.75, 0.25]


@pytest.mark.parametrize("name", ["code", "binary_code"])
def test_what_the_sandbox_could_not_run_is_no_wrong_answer(name, caplog):
    run = executor(
        Judged("sandbox_error", 0.0), Judged("failed", 0.0), Judged("sandbox_error", 1.0)
    )
    scores = score(find_reward(name, executor=run), [GOOD] * 3, test_cases=[["assert True"]] * 3)
    assert scores == [None, 0.0, None]
    assert "2 of 3 programs not judged" in caplog.text


def test_rows_without_tests_are_not_applicable_whatever_the_completion():
    columns = {"test_cases": [None, [], "[]", None]}
    assert score(rewards.code_reward, [GOOD, UNFENCED, GOOD, UNFENCED], **columns) == [None] * 4


def test_tests_may_be_json():
    programs = []
    run = executor(Judged("passed", 1.0), programs=programs)
    tests = ["assert f('é') == 'é'", 'assert f("\\n") == "\\n"']
    assert score(rewards.code_reward, [GOOD], test_cases=[json.dumps(tests)], executor=run) == [1.0]
    assert programs[0][1] == tests


@pytest.mark.parametrize(
    "cell", ["assert f(1) == 1", '{"assert": 1}', "[1]", [1], [["assert True"]], 3]
)
def test_tests_that_are_no_list_of_asserts_are_refused(cell):
    expected = (
        "lists of assert statements or cases"
        if cell != "assert f(1) == 1"
        else "data or JSON, not 'assert f"
    )
    with pytest.raises(ValueError, match=f"^row 1: column 'test_cases' must hold {expected}"):
        score(rewards.code_reward, [GOOD, GOOD], test_cases=[["assert True"], cell])


def test_an_executor_that_loses_a_result_is_an_error():
    reward = rewards.code_reward(executor=lambda programs: [])
    with pytest.raises(ValueError, match="returned 0 results for 1 programs"):
        score(reward, [GOOD], test_cases=[["assert True"]])


@pytest.mark.parametrize(
    ("share", "default", "strict"),
    [(1.0, 1.0, 1.0), (0.99, 1.0, 0.0), (0.98, 0.0, 0.0), (0.0, 0.0, 0.0)],
)
def test_binary_code_reward_rounds_at_99_percent(share, default, strict):
    for mode, expected in ((False, default), (True, strict)):
        reward = rewards.binary_code_reward(
            executor=executor(Judged("failed", share)), strict_reference=mode
        )
        assert score(reward, [GOOD], test_cases=[["assert True"]]) == [expected]


def test_in_the_real_sandbox():
    pytest.importorskip("untrusted")
    tests = ["assert f(1) == 1", "assert f(2) == 3"]
    cheat = "```python\nimport sys\nsys.exit(0)\n```"
    always_equal = (
        "```python\nclass A:\n    def __eq__(self, o): return True\ndef f(x): return A()\n```"
    )
    texts = [GOOD, GOOD, UNFENCED, cheat, always_equal]
    columns = [tests[:1], json.dumps(tests), tests, tests, tests]
    assert score(rewards.code_reward, texts, test_cases=columns) == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert score(rewards.binary_code_reward, texts, test_cases=columns) == [1.0, 0.0, 0.0, 0.0, 0.0]


# Text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n<answer>\nb\n</answer>\nmore", 1.0),
        ("<think>\na\n</think>\n<answer>\nb\n</answer> more", 0.0),
        ("Well: <think>\na\n</think>\n<answer>\nb\n</answer>", 0.0),
        ("<think>\na\n\nb\n</think>\n<answer>\n\n</answer>", 1.0),
    ],
)
def test_format_starts_the_text_and_ends_a_line(text, expected):
    assert score(rewards.format_reward, [text]) == [expected]


def test_tag_count_gives_nothing_for_a_tag_that_occurs_twice():
    text = "<think>\na\n</think>\n<answer>\nb\n</answer>"
    assert score(rewards.tag_count_reward, [text, text + text, text[:-9]]) == [1.0, 0.0, 0.75]


def test_reasoning_steps_count_what_open_r1_counts():
    texts = [
        "1. a\n2. b",
        "a\n- b\n* c",
        "First, Second, Next, Finally,",
        "Step 12: x",
        "step 1: next,",
    ]
    assert score(rewards.reasoning_steps_reward, texts) == [1 / 3, 2 / 3, 1.0, 1 / 3, 0.0]


@given(st.lists(st.sampled_from("ab"), max_size=20), st.integers(1, 4))
def test_repetition_is_between_nothing_and_the_maximum(words, size):
    (penalty,) = score(
        rewards.repetition_penalty_reward(ngram_size=size, max_penalty=-2.0), [" ".join(words)]
    )
    assert penalty is not None
    assert -2.0 < penalty <= 0.0
    windows = list(zip(*(words[start:] for start in range(size)), strict=False))
    repeats = sum(window in windows[:place] for place, window in enumerate(windows))
    assert penalty == pytest.approx(-2.0 * repeats / len(windows) if windows else 0.0)


def test_repetition_ignores_case_and_kind_of_whitespace():
    assert score(rewards.repetition_penalty_reward(ngram_size=1), ["A a\n\tB"]) == [
        pytest.approx(-1 / 3)
    ]


def test_soft_overlong_punishment_without_a_slope_is_a_step():
    reward = rewards.soft_overlong_punishment(max_completion_len=4, soft_punish_cache=0)
    assert score(reward, ["", ""], completion_ids=[[1] * 4, [1] * 5]) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("repetition_penalty", {"ngram_size": 0}, "ngram_size=0: must be at least 1"),
        ("repetition_penalty", {"max_penalty": 0.5}, "max_penalty must not be positive, not 0.5"),
        (
            "soft_overlong_punishment",
            {"soft_punish_cache": -1},
            "soft_punish_cache must be between",
        ),
        (
            "soft_overlong_punishment",
            {"max_completion_len": 9},
            r"max_completion_len \(9\), not 4096",
        ),
        ("cosine", {"max_len": 0}, "max_len=0: must be at least 1"),
        ("code", {"langauge": "c"}, r"reward 'code' has no setting 'langauge', only \['executor'"),
    ],
)
def test_bad_settings_are_refused_at_once(name, settings, message):
    with pytest.raises(ValueError, match=message):
        find_reward(name, **settings)


# Mathematics


def test_without_math_verify_the_error_names_it(monkeypatch):
    # The command line adds the extra that installs it.
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ModuleNotFoundError, match="math_verify") as failure:
        score(rewards.accuracy_reward, ["$1$"], solution=["1"])
    # before the first rollout, too
    with pytest.raises(ModuleNotFoundError, match="math_verify"):
        weighted_sum({"accuracy": 1.0}).require_columns([{"prompt": "p", "solution": "1"}])
    assert "jax-diffucoder[math]" in (terminal.explain_failure(failure.value) or "")


OPEN_R1_VERDICTS = {
    (r"the final answer is $\frac{84}{2}$", "42"): 1.0,
    (r"\boxed{42}, so the final answer is $1$", "42"): 1.0,
    (r"\boxed{x=3}", "$3$"): 1.0,
    (r"\boxed{3 \text{ cm}}", "3"): 1.0,
    (r"\boxed{50\%}", "0.5"): 1.0,
    (r"\boxed{1,2}", r"$\{1,2\}$"): 1.0,
    (r"\boxed{41}", "$42$"): 0.0,
    ("the answer is 42", "42"): 0.0,
    (r"so $42$", "42"): 0.0,
    (r"\boxed{\frac12}", "0.5"): 0.0,
    (r"\boxed{\sqrt2}", r"$\sqrt{2}$"): 0.0,
    ("", "42"): 0.0,
    (r"\boxed{1}", "unreadable"): None,
}
"""What open-r1's settings of math-verify 0.9 give: only correct LaTeX counts, and only boxed or announced."""


def test_accuracy_is_open_r1s():
    pytest.importorskip("math_verify")
    texts, solutions = zip(*OPEN_R1_VERDICTS, strict=True)
    scores = score(rewards.accuracy_reward, texts, solution=solutions)
    assert dict(zip(OPEN_R1_VERDICTS, scores, strict=True)) == OPEN_R1_VERDICTS


def test_mathematics_outside_the_main_thread_is_refused_with_the_reason():
    pytest.importorskip("math_verify")
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="run in the main thread only"),
    ):
        pool.submit(score, rewards.accuracy_reward, ["$1$"], solution=["1"]).result()


def test_cosine_prefers_short_right_answers_and_long_wrong_ones():
    pytest.importorskip("math_verify")
    right, wrong = r"\boxed{42}", r"\boxed{41}"
    reward = rewards.cosine_reward(max_len=20)
    texts = [right, right + " " * 10, right + " " * 20, wrong, wrong + " " * 10, wrong + " " * 20]
    assert score(reward, texts, solution=["42"] * 6) == pytest.approx(
        [0.75, 0.5, 0.5, -0.75, -0.5, -0.5]
    )
    assert score(reward, [right], solution=["unreadable"]) == [None]


def test_length_spans_the_texts_of_the_call_and_never_praises_a_wrong_answer():
    pytest.importorskip("math_verify")
    texts = [r"\boxed{42}", r"\boxed{42}     ", r"\boxed{41}", r"\boxed{41}          ", "x" * 99]
    assert score(rewards.length_reward, texts, solution=["42"] * 4 + ["unreadable"]) == [
        0.5,
        0.0,
        0.0,
        -0.5,
        None,
    ]
    assert score(rewards.length_reward, texts[::2][:2], solution=["42"] * 2) == [0.0, 0.0]
    assert score(rewards.length_reward, [], solution=[]) == []


# The contract


def chat(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("name", sorted(set(REWARDS) - {"accuracy", "cosine", "length"}))
def test_chat_messages_and_strings_are_worth_the_same(name):
    texts = [*recorded("code", "completion"), *recorded("tags", "completion")]
    columns = {
        "test_cases": [["assert True"]] * len(texts),
        "completion_ids": [[1]] * len(texts),
        "prefix": texts,
    }
    settings = (
        {"executor": lambda programs: [Judged("failed", 0.5)] * len(programs)}
        if "code" in name
        else {}
    )
    reward = find_reward(name, **({} if name == "code_format" else settings))
    assert score(reward, [chat(text) for text in texts], **columns) == score(
        reward, texts, **columns
    )


def test_the_last_message_is_judged():
    assert score(rewards.code_format_reward, [[*chat(UNFENCED), *chat(GOOD)]]) == [1.0]


@pytest.mark.parametrize("completion", [[], [{"role": "assistant"}], [{"content": None}]])
def test_a_completion_without_text_is_refused(completion):
    with pytest.raises(ValueError, match="a completion must be a string or chat messages"):
        score(rewards.format_reward, [completion])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {},
            r"reward 'code' needs one of the columns 'test_cases', 'verification_info', .*; given: \[\]",
        ),
        ({"tests": [[]]}, r"needs one of the columns 'test_cases', .*; given: \['tests'\]"),
        ({"test_cases": [[], []]}, "column 'test_cases' has 2 values for 1 completions"),
    ],
)
def test_columns_that_are_missing_or_of_another_length_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        score(rewards.code_reward, [GOOD], **columns)


def test_prompts_and_completions_belong_together():
    with pytest.raises(ValueError, match="column 'prompts' has 2 values for 1 completions"):
        rewards.format_reward(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="needs prompts and completions"):
        rewards.format_reward(completions=["c"])


def test_settings_do_not_leak_into_the_registered_reward():
    rewards.code_format_reward(["p"], [GOOD], strict_reference=True)
    rewards.code_format_reward(strict_reference=True)
    assert score(rewards.code_format_reward, [GOOD.rstrip()]) == [1.0]


# Registry


def bonus(prompts, completions, scale=1.0, **columns):
    """A user's reward."""
    return [scale * len(completion) for completion in completions]


no_reward = 3


def test_every_name_of_the_specification_is_registered():
    expected = "accuracy binary_code code code_format completed_code cosine format length reasoning_steps repetition_penalty "
    assert sorted(REWARDS) == [*expected.split(), "soft_overlong_punishment", "tag_count"]
    assert all(REWARDS[name].name == name for name in REWARDS)


def test_users_own_rewards_by_import_path():
    here = __name__
    assert score(find_reward(f"{here}:bonus"), ["ab"]) == [2.0]
    assert score(find_reward(f"{here}:bonus", scale=0.5), ["ab"]) == [1.0]
    strict = find_reward("jax_lm.rewards.code:CodeFormat", strict_reference=True)
    assert strict == find_reward("code_format", strict_reference=True)
    assert find_reward("jax_lm.rewards:code_format_reward", strict_reference=True) == strict


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "code_fromat",
            r"reward='code_fromat': must be one of accuracy, .* \(perhaps code_format\)",
        ),
        ("absent_package.x:f", "cannot be imported: No module named 'absent_package'"),
        (f"{__name__}:absent", "cannot be imported: .*has no attribute 'absent'"),
        (f"{__name__}:no_reward", "is not callable: 3"),
        (":f", "cannot be imported"),
    ],
)
def test_unknown_rewards_are_one_clear_line(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        find_reward(name)
    assert "\n" not in str(caught.value)


# Weighted sum


def constant(*values):
    return lambda prompts, completions, **columns: list(values)


def test_weighted_sum_of_the_paper():
    run = executor(Judged("passed", 1.0), Judged("failed", 0.25))
    total = weighted_sum({"code": 2.0, "code_format": 0.5}, {"code": {"executor": run}})
    scored = total.score(
        ["p"] * 4, [GOOD, GOOD, UNPARSEABLE, UNFENCED], test_cases=[["assert True"]] * 4
    )
    assert scored.totals == [2.5, 1.0, 0.25, 0.0]
    assert scored.parts == {"code": [1.0, 0.25, 0.0, 0.0], "code_format": [1.0, 1.0, 0.5, 0.0]}
    assert (scored.totals.count(None), scored.missing) == (0, {"code": 0, "code_format": 0})


def test_a_reward_that_does_not_apply_is_left_out_as_in_trl():
    total = WeightedSum(
        {
            "code": rewards.code_reward(executor=executor(Judged("passed", 1.0))),
            "own": constant(1.0, None, 3.0),
        },
        {"code": 2.0, "own": 0.5},
    )
    scored = total.score(["p"] * 3, [GOOD] * 3, test_cases=[["assert True"], None, []])
    assert scored.totals == [2.5, None, 1.5]
    assert (scored.totals.count(None), scored.missing) == (1, {"code": 2, "own": 1})


def test_a_sandbox_error_excludes_the_completion_and_is_counted():
    run = executor(Judged("sandbox_error", 0.0), Judged("failed", 0.0))
    total = weighted_sum({"code": 2.0, "code_format": 0.5}, {"code": {"executor": run}})
    scored = total.score(["p"] * 2, [GOOD] * 2, test_cases=[["assert True"]] * 2)
    assert scored.totals == [None, 0.5]
    assert (scored.totals.count(None), scored.missing) == (1, {"code": 1, "code_format": 0})


def test_weight_zero_shows_a_reward_and_changes_nothing():
    reward = rewards.code_reward(executor=executor(Judged("sandbox_error", 0.0)))
    total = WeightedSum({"code": reward, "own": constant(1.0)}, {"code": 0.0, "own": 1.0})
    scored = total.score(["p"], [GOOD], test_cases=[["assert True"]])
    assert scored.totals == [1.0]
    assert scored.parts["code"] == [None]


@given(
    st.lists(
        st.tuples(st.floats(-3, 3), st.one_of(st.none(), st.floats(-9, 9))), min_size=1, max_size=5
    )
)
def test_weighted_sum_is_the_nansum_of_trl_for_plain_functions(terms):
    named = {f"reward {place}": constant(value) for place, (_, value) in enumerate(terms)}
    total = WeightedSum(
        named, {f"reward {place}": weight for place, (weight, _) in enumerate(terms)}
    )
    judged = [weight * value for weight, value in terms if weight and value is not None]
    (ours,) = total(["p"], ["c"])
    assert ours == (pytest.approx(math.fsum(judged), abs=1e-12) if judged else None)


def test_a_column_named_like_a_setting_stays_data():
    total = weighted_sum({"code_format": 1.0})
    assert total(["p"], [GOOD], language=["rust"], strict_reference=[True]) == [1.0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "reward 'own' returned 1 values for 2 completions"),
        (0.5, "reward 'own' returned float for 2 completions"),
        (
            [1.0, math.nan],
            "reward 'own' returned nan for completion 1, not a finite number or None",
        ),
        (["high", 1.0], "reward 'own' returned 'high' for completion 0"),
    ],
)
def test_what_a_users_reward_returns_is_checked(returned, message):
    total = WeightedSum({"own": lambda prompts, completions, **columns: returned}, {"own": 1.0})
    with pytest.raises(ValueError, match=message):
        total(["p", "p"], ["a", "b"])


def test_what_a_users_reward_raises_is_one_line_with_its_place():
    def own(prompts, completions, **columns):
        return [float(len(text) / columns["weights"][0]) for text in completions]

    total = WeightedSum({"own": own}, {"own": 1.0})
    place = rf"reward 'own' raised KeyError\('weights'\) in {__file__}, line \d+"
    for call in (lambda: total(["p"], ["a"]), lambda: total.try_out("p", test_cases=["x"])):
        with pytest.raises(ValueError, match=place):
            call()
    total.try_out("p", weights=2.0)


def test_columns_are_checked_before_a_run():
    rows = [{"prompt": "p", "test_cases": ["assert f()"], "prefix": None}]
    weighted_sum({"code": 1.0, "soft_overlong_punishment": 1.0}).require_columns(rows)
    with pytest.raises(ValueError, match="'completed_code' needs the column 'prefix'"):
        weighted_sum({"completed_code": 1.0}).require_columns(rows)
    with pytest.raises(ValueError, match="'code' needs one of the columns 'test_cases'"):
        weighted_sum({"code": 1.0}).require_columns([{"prompt": "p"}])


def test_weighted_sum_refuses_columns_of_another_length_even_unused_ones():
    with pytest.raises(ValueError, match="column 'source' has 1 values for 2 completions"):
        weighted_sum({"format": 1.0})(["p"] * 2, ["a"] * 2, source=["x"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "rewards must name at least one"),
        (({"format": math.inf},), "weight of reward 'format' must be a finite number, not inf"),
        (({"format": 1.0}, {"code": {}}), "settings for 'code', which is not among the rewards"),
        (({"fromat": 1.0},), "perhaps format"),
    ],
)
def test_a_bad_mixture_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        weighted_sum(*arguments)
    with pytest.raises(ValueError, match=r"weights are for \['b'\], rewards are \['a'\]"):
        WeightedSum({"a": constant(1.0)}, {"b": 1.0})


def test_a_function_of_a_file_or_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("SHARE = 0.5\n")
    text = "from beside import SHARE\ndef half(prompts, completions, **columns):\n    return [SHARE] * len(completions)\n"
    (tmp_path / "my_rewards.py").write_text(text)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert find_reward("../my_rewards.py:half")(["p"], ["c", "d"]) == [0.5, 0.5]
    monkeypatch.chdir(tmp_path)
    for name in ("my_rewards", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    assert find_reward("my_rewards:half")(["p"], ["c"]) == [0.5]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.py:f", "No such file"),
        ("absent_module:f", "No module named"),
        ("jax_lm.cli:absent", "absent"),
        ("broken.py:f", "name 'undefined' is not defined"),
    ],
)
def test_a_function_that_is_not_there(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("undefined\n")
    with pytest.raises(ValueError, match=f"reward '{name}' cannot be imported: .*{said}"):
        find_reward(name)
