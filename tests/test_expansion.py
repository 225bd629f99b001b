"""Answers shown with a hole of the wrong length: cutting, masks, weights, the loss, and `sft
--expand-delete`.
"""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jax_lm.cli.main import main
from jax_lm.config import VOCABULARY_STEP
from jax_lm.data.batches import Drawn, Row, SampleStream, collate, fill_rows
from jax_lm.data.expansion import MAX_EXCESS, Expansion, cut, is_worth_learning, merge_masks
from jax_lm.diffusion.variable_length import VariableLength
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.models.vocabulary import add_expand_token
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer
from jax_lm.training.config import LossConfig, SftConfig
from jax_lm.training.masked_diffusion import diffusion_loss, drawn_loss_terms

PROGRAM = "def area(r):\n    pi = 3.14159\n    square = r * r\n    return pi * square\n"
LONGEST = 160


@pytest.fixture(scope="module")
def tokenizer(builtin_folder):
    return DiffuCoderTokenizer.from_pretrained(builtin_folder).with_expand()


@pytest.fixture(scope="module")
def expansion(tokenizer):
    return Expansion(tokenizer, tokenizer.token_id("<|endoftext|>"), LONGEST)


@pytest.fixture(scope="module")
def sample(tokenizer):
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write the area of a circle."}]
    )
    before, answer = (
        tokenizer.encode(prompt),
        [*tokenizer.encode(PROGRAM), tokenizer.token_id("<|im_end|>")],
    )
    return Row((*before, *answer), (*[False] * len(before), *[True] * len(answer)))


def seeded(seed):
    return np.random.default_rng(seed)


@given(st.text(alphabet="ab \ndef:`\t(é", max_size=80), st.integers(0, 2**32 - 1))
def test_a_cut_loses_nothing(text, seed):
    if not text.strip():
        with pytest.raises(ValueError, match="no line to cut out"):
            cut(text, seeded(seed))
        return
    prefix, middle, suffix = cut(text, seeded(seed))
    assert prefix + middle + suffix == text
    assert middle


def test_a_cut_says_something_and_defines_nothing_where_it_can():
    lines, parts = set(), set()
    for seed in range(600):
        prefix, middle, suffix = cut(PROGRAM, seeded(seed))
        whole = prefix[-1:] in ("", "\n") and suffix[:1] == "\n"
        (lines if whole else parts).add(middle)
    worth = {middle for middle in lines if is_worth_learning(middle)}
    assert {
        "    return pi * square",
        "    pi = 3.14159\n    square = r * r",
        "    square = r * r",
    } <= worth
    # After five tries in vain the whole program is the hole.
    assert lines - worth == {PROGRAM.rstrip("\n")}
    assert 200 < len(parts) < 400
    assert is_worth_learning("x = undefined")
    assert not is_worth_learning("def f(x): pass")
    assert not is_worth_learning("a b")


def test_only_the_code_block_of_an_answer_is_cut():
    answer = (
        f"Here is what you asked for:\n```python\n{PROGRAM}```\nIt takes the radius as it is.\n"
    )
    for seed in range(100):
        prefix, middle, suffix = cut(answer, seeded(seed))
        assert prefix.startswith("Here is what you asked for:\n```python\n")
        assert suffix.endswith("```\nIt takes the radius as it is.\n")
        assert middle in PROGRAM


def test_merged_masks_stand_for_what_is_hidden():
    """A hidden token is masked, and so is the one before it, which is to expand; all else is as it
    was.
    """
    for seed in range(1000):
        rng = seeded(seed)
        middle = rng.integers(0, 90, int(rng.integers(1, 20)))
        masked = rng.random(len(middle)) < rng.random()
        before = masked.copy()
        labels, shown = merge_masks(middle, masked, float(rng.random()), 94, rng)
        assert (before == masked).all()
        assert shown[0]
        assert masked[~shown].all()
        hidden = np.flatnonzero(~shown)
        assert (labels[hidden - 1] == 94).all()
        assert masked[hidden - 1].all()
        assert (np.flatnonzero(labels == 94) == hidden - 1).all()
        assert (labels[labels != 94] == middle[labels != 94]).all()


def test_pairs_are_merged_as_often_as_stated():
    rng, masked = seeded(0), np.ones(20_001, bool)
    for share in (0.1, 0.5):
        _, shown = merge_masks(np.zeros(20_001, int), masked, share, 94, rng)
        assert abs((~shown).mean() - share) < 0.012


def test_a_row_is_the_answer_with_a_hole_of_the_wrong_length(sample, expansion, tokenizer):
    prompt = [token for token, learnt in zip(sample.ids, sample.canvas, strict=True) if not learnt]
    sizes, alone, expanded = set(), 0, 0
    for seed in range(600):
        row = expansion(sample, seed, seeded(seed))
        ids, canvas, (level, shares) = np.array(row.ids), np.array(row.canvas), row.drawn
        shares = np.array(shares)
        assert len(ids) == len(canvas) == len(shares) <= LONGEST
        assert not row.open
        assert canvas.any()
        assert 0 <= level < 1
        assert ids[-1] == expansion.delete_id
        assert not canvas[-1]
        # What is shown is the answer but for its hole, with its prompt or without.
        shown = ids[:-1][~canvas[:-1]].tolist()
        is_alone = shown[: len(prompt)] != prompt
        text = tokenizer.decode(shown if is_alone else shown[len(prompt) :])
        assert is_subsequence(text, PROGRAM)
        deletes = canvas & (ids == expansion.delete_id)
        others = canvas & ~deletes
        assert (shares[others] == 1).all()
        assert (shares[~canvas] == 0).all()
        assert shares[deletes].sum() == pytest.approx(float(deletes.any()))
        # Deletes stand last in the hole.
        assert not others[np.argmax(deletes) :].any() or not deletes.any()
        sizes.add(int(deletes.sum()))
        alone, expanded = alone + is_alone, expanded + (ids[canvas] == tokenizer.expand_id).any()
    assert sizes == set(range(MAX_EXCESS + 1))
    assert 240 < alone < 360
    assert 180 < expanded < 420


def is_subsequence(part, whole):
    """Whether letters can be left out of a text so that the part is left."""
    letters = iter(whole)
    return all(letter in letters for letter in part)


def test_a_row_that_is_full_loses_its_beginning_and_not_its_hole(sample, tokenizer):
    short = Expansion(tokenizer, 1531, len(sample.ids) - 8)
    for seed in range(200):
        row = short(sample, 0, seeded(seed))
        assert len(row.ids) <= len(sample.ids) - 8
        assert any(row.canvas)
        assert row.ids[-1] == 1531


def test_the_draws_of_a_step_follow_from_the_step(sample, expansion):
    class Always:
        def rows(self, first, count):
            return [[0]] * count

        def start(self, epoch):
            return epoch

    options = {"max_length": LONGEST, "batch_size": 4, "pad_id": 0, "seed": 3, "vary": expansion}
    first, again = (SampleStream([sample], Always(), **options).batch(7) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert len({row.tobytes() for row in first.canvas}) == 4
    half = SampleStream([sample], Always(), **options).batch(7, process=1, processes=2)
    jax.tree.map(
        np.testing.assert_array_equal, half.drawn, jax.tree.map(lambda rows: rows[2:], first.drawn)
    )


def test_the_loss_is_that_of_its_definition(sample, expansion, tiny_folder):
    """(1 - t) times the share of each mask, over all shares; pads are not attended to; added rows
    change nothing.
    """
    model = DreamForCausalLM.from_pretrained(tiny_folder, dtype="float32")
    model = add_expand_token(model, 1536)
    rows = [[expansion(sample, step, seeded(step))] for step in range(3)]
    batch = collate(rows, LONGEST, 1535)
    loss = jax.jit(diffusion_loss(nnx.split(model)[0], LossConfig(normalisation="sequence"), 1534))
    terms = loss(nnx.to_pure_dict(nnx.split(model)[1]), batch, jax.random.key(0))
    # Rows of all lengths through one program: added columns at the end are not attended to.
    forward = jax.jit(model.__call__)
    total = weight = 0.0
    for (row,) in rows:
        ids, canvas = np.array(row.ids), np.array(row.canvas)
        shown = np.full((1, LONGEST), 1535)
        shown[0, : len(ids)] = np.where(canvas, 1534, ids)
        logits = np.asarray(forward(shown, np.arange(LONGEST)[None] < len(ids)))[0, : len(ids)]
        logits = logits.astype(np.float64)
        logits = np.concatenate([logits[:1], logits[:-1]])
        logits -= np.log(
            np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)
        ) + logits.max(-1, keepdims=True)
        losses = -logits[np.arange(len(ids)), ids]
        total += (losses * canvas * np.array(row.drawn.shares)).sum() * (1 - row.drawn.level)
        weight += sum(row.drawn.shares)
    assert float(terms.total) == pytest.approx(total, rel=1e-5)
    assert float(terms.weight) == pytest.approx(weight, rel=1e-6)
    more = loss(nnx.to_pure_dict(nnx.split(model)[1]), fill_rows(batch, 4), jax.random.key(1))
    assert float(more.total) == pytest.approx(float(terms.total), rel=1e-6)
    assert float(more.weight) == float(terms.weight)


def test_the_new_token_takes_a_free_row_or_a_new_one(tiny_folder):
    model = DreamForCausalLM.from_pretrained(tiny_folder)
    before = np.asarray(model.model.embed_tokens.weight[...], np.float32)
    # Uncompiled, operation by operation: otherwise the size of the vocabulary changes the rounding.
    ids = jnp.arange(8)[None]
    logits = np.asarray(model(ids), np.float32)
    grown = add_expand_token(model, 1536)
    assert grown.config.vocab_size == 1536 + VOCABULARY_STEP
    assert grown.config.expand_token_id == 1536
    after = np.asarray(grown.model.embed_tokens.weight[...], np.float32)
    np.testing.assert_array_equal(after[:1536], before)
    np.testing.assert_allclose(after[1536], before.mean(axis=0), rtol=1e-2, atol=1e-4)
    grown_logits = np.asarray(grown(ids), np.float32)
    np.testing.assert_array_equal(grown_logits[..., :1536], logits)
    again = add_expand_token(DreamForCausalLM.from_pretrained(tiny_folder), 1530)
    assert again.config.vocab_size == 1536


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"packed": True}, "packed=True: must be False with expand_delete"),
        ({"condition_share": 0.5}, "condition_share=0.5: must be 0.0 with expand_delete"),
        (
            {"loss": LossConfig(weighting="linear", normalisation="sequence")},
            "weighting='linear': must be '1/t'",
        ),
        ({"loss": LossConfig(weighting="plain")}, "normalisation='token': must be 'sequence'"),
        ({"loss": LossConfig()}, "normalisation='token': must be 'sequence'"),
    ],
)
def test_what_has_no_meaning_beside_it_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SftConfig(expand_delete=True, **settings)
    assert SftConfig(
        expand_delete=True, loss=LossConfig(normalisation="sequence", remat=True)
    ).expand_delete
    plain = LossConfig(normalisation="sequence", weighting="plain", high_levels=True)
    assert SftConfig(expand_delete=True, loss=plain).expand_delete


@pytest.mark.parametrize(("weighting", "weights"), [("1/t", (0.75, 0.0)), ("plain", (1.0, 1.0))])
def test_a_full_hole_counts_where_tokens_count_plainly(weighting, weights):
    """Two rows of two masks, one of which counts by half, at t = 1/4 and t = 1."""
    losses, masked = jnp.full((2, 3), 2.0), jnp.array([[False, True, True]] * 2)
    levels, shares = jnp.array([[0.25] * 3, [1.0] * 3]), jnp.array([[0.0, 1.0, 0.5]] * 2)
    terms = drawn_loss_terms(LossConfig(weighting=weighting), losses, masked, levels, shares)
    assert float(terms.total) == pytest.approx(2.0 * 1.5 * sum(weights))
    assert float(terms.weight) == pytest.approx(3.0)


def test_high_levels_mask_more_of_a_hole(expansion, sample):
    means = []
    for each in (expansion, replace(expansion, high_levels=True)):
        rows = [each(sample, 0, seeded(seed)) for seed in range(600)]
        means.append(np.mean([row.drawn.level for row in rows]))
    # Of u and of 1 - u^2.
    assert means == pytest.approx([1 / 2, 2 / 3], abs=6 * 0.3 / 600**0.5)


def test_excess_masks_are_even_or_even_in_their_logarithm(expansion):
    even = [expansion.draw_excess(seeded(seed)) for seed in range(4000)]
    few = [replace(expansion, excess_masks="log").draw_excess(seeded(seed)) for seed in range(4000)]
    assert set(even) == set(few) == set(range(MAX_EXCESS + 1))
    # 7 and fewer are eight of 64 numbers, or nine of 65 in the logarithm.
    for draws, share in ((even, 1 / 8), (few, np.log(9) / np.log(65))):
        assert np.mean(np.array(draws) < 8) == pytest.approx(share, abs=0.03)
    with pytest.raises(ValueError, match="excess_masks='few': must be one of uniform, log"):
        SftConfig(excess_masks="few")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, builtin_folder):
    """A small model without the token, and programs."""
    folder = tmp_path_factory.mktemp("expansion")
    tokenizer = DiffuCoderTokenizer.from_pretrained(builtin_folder)
    config = DreamConfig(
        vocab_size=1536, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=160, rope_theta=1e4, rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id, eos_token_id=tokenizer.token_id("<|endoftext|>"),
    )  # fmt: skip
    DreamForCausalLM(config, rngs=nnx.Rngs(0)).save_pretrained(
        folder / "model", tokenizer=tokenizer
    )
    rows = [
        {"prompt": f"Add {i}.", "response": f"x = {i}\ny = x + 1\nz = y + {i}\nprint(z)"}
        for i in range(12)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def arguments(folder, out, *more):
    words = [
        "sft",
        "--data",
        folder / "data.jsonl",
        "--model",
        folder / "model",
        "--out",
        folder / out,
    ]
    sizes = [
        "--max-length",
        96,
        "--batch-size",
        4,
        "--max-steps",
        12,
        "--learning-rate",
        0.01,
        "--save-every",
        4,
    ]
    return [
        str(word) for word in (*words, *sizes, "--expand-delete", "--held-out-share", 0.25, *more)
    ]


def test_the_command_gives_a_checkpoint_whose_holes_grow(folder):
    assert main(arguments(folder, "whole")) == 0
    assert main(arguments(folder, "parts", "--stop-after", "5")) == 0
    assert main(arguments(folder, "parts")) == 0
    whole, parts = (folder / out / "model" for out in ("whole", "parts"))
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    config = json.loads((whole / "config.json").read_text())
    assert (config["expand_token_id"], config["vocab_size"]) == (1536, 1600)
    engine = DiffuCoderInference(str(whole), verbose=False)
    assert engine.tokenizer.expand_id == 1536
    assert engine.sampler.growth == VariableLength(1536, 1531)
    # After twelve steps it knows nothing; but no other checkpoint is let do this.
    assert "<|" not in engine.infill(
        "x = 1\n", "\nprint(z)", 24, options=GenerationOptions(growth="on")
    )
    # It is trained further as it is, and its row of the new token is not made again.
    more = ["--model", str(whole), "--max-steps", "1", "--learning-rate", "1e-9"]
    assert main([*arguments(folder, "more"), *more]) == 0
    again = DreamForCausalLM.from_pretrained(folder / "more" / "model")
    rows = (
        np.asarray(model.model.embed_tokens.weight[1536])
        for model in (again, DreamForCausalLM.from_pretrained(whole))
    )
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-6)


def test_adapters_cannot_teach_the_new_token(folder, capsys):
    assert main(arguments(folder, "lora", "--lora-rank", "2")) == 2
    assert "which adapters cannot teach" in capsys.readouterr().err
    assert not (folder / "lora").exists()


def test_a_drawn_row_beside_others_is_a_batch_of_its_own():
    row = Row((5, 6, 7), (False, True, False), open=False, drawn=Drawn(0.25, (0.0, 1.0, 0.0)))
    batch = collate([[row]], 5, 0)
    assert batch.drawn is not None
    np.testing.assert_array_equal(batch.drawn.levels, [[0.25, 0.25, 0.25, 0, 0]])
    np.testing.assert_array_equal(batch.drawn.shares, [[0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(batch.samples, [[0, 0, 0, -1, -1]])
    assert collate([[Row((5,), (True,))]], 5, 0).drawn is None


def test_the_token_has_a_name(tokenizer):
    assert tokenizer.decode([tokenizer.expand_id]) == EXPAND
    assert EXPAND not in tokenizer.decode([5, tokenizer.expand_id], skip_special_tokens=True)
