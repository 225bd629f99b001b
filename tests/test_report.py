"""What the rates depend on, the published scores, and that a page holds what a model wrote as text."""

from dataclasses import asdict

from jax_lm.evaluation.report import PUBLISHED, evaluation_report, paper_sections
from jax_lm.options import Decoding, GenerationOptions

SETTINGS = {
    "suite": "humaneval",
    "model": "m",
    "prompts": "base",
    "problems": 2,
    "n": 2,
    "dtype": "float32",
}


def record(name, outcome, sample=0, group="families", **fields):
    return {"name": name, "sample": sample, "group": group, "outcome": outcome, "prompt": "", "completion": "",
            "program": "x = 1", "detail": "", "tier": "landlock", "forwards": 4, "seconds": 0.5} | fields  # fmt: skip


RECORDS = [
    record("a", "passed"),
    record("a", "failed", 1),
    record("b", "failed"),
    record("b", "timeout", 1),
    record("c", "passed", group="compositions"),
    record("c", "sandbox_error", 1, group="compositions"),
]


def report_of(records, **settings):
    return evaluation_report(SETTINGS | settings, records, (1,), total=164)


def test_metadata_says_what_was_not_counted():
    metadata = report_of(RECORDS).metadata
    assert metadata["outcomes"] == "2 failed, 2 passed, 1 sandbox error, 1 timeout"
    assert metadata["not counted"].startswith("1 programs")
    assert metadata["problems"] == "2 of 164, samples of each: 2"


def test_the_decoding_and_the_precision_are_those_of_the_run():
    options = GenerationOptions(
        temperature=0.0, tokens_per_step=4, decoding=Decoding(commit="steps", cache="dual")
    )
    settings = {"generation": asdict(options), "quantization": "int8", "seed": 3}
    decoding = report_of(RECORDS, **settings).metadata["decoding"]
    assert "steps: 4 tokens each" in decoding
    assert "preset exact, commit steps, cache dual" in decoding
    assert decoding.endswith("seed 3, int8")
    settings["generation"] = asdict(GenerationOptions(num_steps=7))
    assert "steps: 7," in report_of(RECORDS, **settings).metadata["decoding"]


def test_published_scores_stand_beside_the_run():
    assert PUBLISHED["scores"]["DiffuCoder cpGRPO"]["humaneval+"] == 68.3
    assert PUBLISHED["scores"]["DiffuCoder Base"]["mbpp"] == 74.2
    assert paper_sections({"suite": "infilling"}, []) == []
    report = report_of(RECORDS, problems=164)
    rows = report.sections[1].rows
    assert rows[0] == ["this run", "50.0", "12.5 to 87.5"]
    assert ["DiffuCoder Base", "67.1"] in [row[:2] for row in rows]
    assert "| DiffuCoder Base | 67.1 | 59.6 to 73.8 |" in report.markdown()
    # a part of the benchmark, or a file of one's own
    assert "DiffuCoder" not in report_of(RECORDS).markdown()
    assert "published" not in report_of(RECORDS, suite="builtin").markdown()


def test_what_a_model_wrote_is_text_in_the_page():
    attack = "<script>alert(1)</script>"
    records = [
        record("a", "failed", prompt=attack, completion=attack, program=attack, detail=attack)
    ]
    text = report_of(records).page()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 4
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert text.count("<details>") == len(records)
