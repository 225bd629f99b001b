"""Which texts share a batch."""

import json
from dataclasses import replace

from jax_lm.cli.main import main
from jax_lm.inference.batches import share_batches
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer


def test_texts_of_similar_width_share_a_batch(tiny_config):
    assert share_batches([9, 4, 7, 5], 2, tiny_config) == [[1, 3], [2, 0]]
    assert share_batches([9, 4, 7], 8, tiny_config) == [[1, 2, 0]]
    assert share_batches([], 8, tiny_config) == []


def test_prompts_of_a_batch_end_at_the_same_place_in_a_block(tiny_config):
    blocks = replace(tiny_config, model_type="Fast_dLLM_Qwen", block_size=4)
    assert share_batches([9, 4, 7, 5], 2, blocks) == [[1], [3, 0], [2]]
    # Blocks that are counted from the end of the prompt need no such batches.
    counted = replace(tiny_config, model_type="a2d-qwen2", block_size=4)
    assert share_batches([9, 4, 7, 5], 2, counted) == [[1, 3], [2, 0]]


def test_answers_of_a_model_with_blocks_are_those_of_prompts_alone(tmp_path, tiny_folder, caplog):
    tokenizer = DiffuCoderTokenizer.from_pretrained(tiny_folder)
    model = DreamForCausalLM.from_pretrained(tiny_folder)
    model.become(model.config.with_blocks(4))
    model.save_pretrained(tmp_path / "blocks", tokenizer=tokenizer, source=tiny_folder)
    prompts = [json.dumps("def f(" + "x" * length) for length in range(1, 7)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts))
    answers = {}
    for size in (1, 8):
        out = tmp_path / f"{size}.jsonl"
        options = ["--batch-size", str(size), "--max-new-tokens", "8", "--temperature", "0"]
        source = ["--model", str(tmp_path / "blocks"), "--prompts", str(tmp_path / "prompts.jsonl")]
        assert main(["generate", *source, "--out", str(out), *options]) == 0
        answers[size] = [json.loads(line)["completion"] for line in out.read_text().splitlines()]
    assert answers[1] == answers[8]
    assert "not as trained" not in caplog.text
