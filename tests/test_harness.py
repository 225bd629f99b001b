"""lm-evaluation-harness runs small local tasks through the adapter; its numbers are those of the
library.
"""

import json

import pytest

pytest.importorskip("lm_eval")
import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.evaluation.harness import DiffuCoderLM
from jax_lm.options import GenerationOptions

ROWS = [
    {"text": "def double(x):\n    return", "choices": [" x * 2\n", " zebra zebra\n"], "answer": 0},
    {"text": "def half(x):\n    return", "choices": [" import import\n", " x / 2\n"], "answer": 1},
]
CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
"""
TASKS = {
    "local_choice": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
""",
    "local_writing": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "local_text": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
""",
}


@pytest.fixture(scope="module")
def model():
    return DiffuCoderLM(samples=8, batch_size=2)


def instance(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_the_harness_runs_tasks_of_each_kind(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(CHOICE.format(name=name, data=data) + text)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model,
        tasks=list(TASKS),
        task_manager=manager,
        log_samples=True,
        bootstrap_iters=0,
        random_seed=0,
    )
    results, samples = found["results"], found["samples"]
    assert results["local_choice"]["acc,none"] == 1.0
    assert 0 < results["local_text"]["bits_per_byte,none"] < 8
    options = GenerationOptions(max_new_tokens=16, temperature=0.0)
    expected = model.engine.complete([row["text"] for row in ROWS], options)
    written = {sample["doc"]["text"]: sample["resps"][0][0] for sample in samples["local_writing"]}
    assert written == {
        row["text"]: text.split("\n\n")[0] for row, text in zip(ROWS, expected, strict=True)
    }


def test_likelihood_is_the_library_s(model):
    context, target = "def double(x):\n    return", " x * 2\n"
    (score, is_greedy), (_, other_is_greedy) = model.loglikelihood(
        [instance("loglikelihood", context, target), instance("loglikelihood", context, " zebra\n")]
    )
    ids = model.tok_encode(context + target)
    start = len(model.tok_encode(context))
    assert (
        score
        == log_likelihood(
            model.engine.sampler, ids[:start], ids[start:], samples=8, seed=0
        ).log_likelihood
    )
    assert isinstance(is_greedy, bool)
    assert not other_is_greedy


def test_what_the_model_writes_is_greedy(model):
    context, length = model.tok_encode("def double(x):\n    return"), 5
    [row] = model.decode_greedily([(context, [0] * length)], length)
    changed = row.copy()
    changed[0] = (changed[0] + 1) % 256
    pairs = [(context, row.tolist()), (context, changed.tolist()), (context, []), (context, [0, 0])]
    assert model.are_greedy(pairs) == [True, False, True, False]


class Counting(DiffuCoderLM):
    """Scores a text by its tokens."""

    def estimate(self, context, target):
        return -float(len(target))


def test_long_texts_are_scored_token_by_token_once(model):
    text = "x = 1\n" * 300
    ids = model.tok_encode(text)
    windows = model.windows(text)
    assert len(windows) > 1
    assert [token for _, target in windows for token in target] == ids
    assert all(len(context) + len(target) <= model.max_length for context, target in windows)
    assert Counting().loglikelihood_rolling([instance("loglikelihood_rolling", text)]) == [
        -len(ids)
    ]


def test_what_does_not_fit_loses_its_beginning(model):
    long = [number % 200 for number in range(600)]
    context, target = model.fitting(long, [1, 2, 3])
    assert (len(context), target) == (model.max_length - 3, [1, 2, 3])
    assert context == long[-len(context) :]
    with pytest.raises(ValueError, match="600 tokens"):
        model.fitting([], long)
    cut = model.prompt("x = 1\n" * 300, 400)
    assert len(model.tok_encode(cut)) <= model.max_length - 400
    assert ("x = 1\n" * 300).endswith(cut)
    with pytest.raises(ValueError, match="max_gen_toks=512"):
        model.prompt("x = 1\n" * 300, 512)


def test_options_that_do_not_exist_are_named(model):
    with pytest.raises(ValueError, match="best_of, num_beams"):
        model.generate_until(
            [instance("generate_until", "x", {"until": ["\n"], "num_beams": 3, "best_of": 2})]
        )
    for name, value in (("batch_size", "auto"), ("samples", 0), ("preset", "quick")):
        with pytest.raises(ValueError, match=name):
            DiffuCoderLM(**{name: value})
