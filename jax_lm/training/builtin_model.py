"""Recipe of the built-in model: its tokenizer, its shape, its training run.

    python -m jax_lm.training.builtin_model --out out/builtin

rebuilds it from nothing on a CPU; `runs/builtin_model.sh` also measures the result.
"""

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro
from flax import nnx

from jax_lm.data.corpus import draw_task
from jax_lm.data.rows import RowKind, chat_row, completion_row, continuation_row, infilling_row, stream_batches
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import (
    DIFFUSION_PAD,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    START_OF_TURN,
    DiffuCoderTokenizer,
    train_bpe,
)
from jax_lm.training.adaptation import AdaptationConfig, train

VOCABULARY = 1536
TOKENIZER_TASKS = 20_000
WORDS = (
    r"\n *"
    r"| ?\b(?:def|class|return|if|elif|while|for|in|is|not|and|or|else|import|from|lambda|yield)\b ?"
    r"| ?_*[A-Za-z]+|\d| ?[^\w\s]+ ?|_+|\s+"
)
"""Word pattern of the tokenizer: Python's keywords and punctuation swallow the spaces around them.

So a name is the same token wherever code has it ("(s)", "return s", "s[0]"), and copying a parameter from the
header is copying a token. Under Qwen's pattern it is three tokens ("(s", " s", "s"), which a model of this size took
thousands of steps to match.
"""
CANVAS_LENGTHS = (64, 96, 128, 192, 352)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


ADAPTATION = AdaptationConfig(
    steps=5000,
    learning_rate=2e-3,
    muon_learning_rate=0.012,
    compute_dtype="bfloat16",
    # The evidence bound spends its weight on nearly full canvases: after 3,000 steps of it a masked token was right
    # in 75 % of the cases with 30 % of the canvas visible, and in 29 % with none, where generation starts.
    objective="masked_mean",
)
SHARES: Mapping[RowKind, float] = {completion_row: 0.78, continuation_row: 0.04, infilling_row: 0.09, chat_row: 0.09}
LONGER_SHARE = 0.12


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Train the built-in model.

    Attributes:
        out: folder for the checkpoint, the tokenizer and, under training/, metrics.jsonl and float32 weights.
        tokens_per_batch: tokens of a batch, spare canvas included.
        seed: of the corpus, the initial weights and the masks.
    """

    out: Path
    tokens_per_batch: int = 4096
    seed: int = 0


def build_tokenizer(seed: int) -> DiffuCoderTokenizer:
    """A byte-level BPE over the training side of the corpus, with Dream's special tokens."""
    rng = random.Random(seed)
    tasks = (draw_task(rng) for _ in range(TOKENIZER_TASKS))
    texts = (f"{task.prompt}{task.completion}\n{task.description}" for task in tasks)
    tokens = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
    return train_bpe(
        texts, vocab_size=VOCABULARY, special_tokens=tokens, chat_template=CHAT_TEMPLATE, word_pattern=WORDS
    )


def model_config(tokenizer: DiffuCoderTokenizer) -> DreamConfig:
    """Shape of the built-in model: 4.3 million parameters."""
    return DreamConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.token_id(END_OF_TEXT),
        eos_token_id=tokenizer.token_id(END_OF_TEXT),
    )


def main(recipe: Recipe) -> None:
    """Build the tokenizer, train, and write the checkpoint in bfloat16."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    tokenizer = build_tokenizer(recipe.seed)
    model = DreamForCausalLM(model_config(tokenizer), rngs=nnx.Rngs(recipe.seed))
    batches = stream_batches(
        tokenizer,
        seed=recipe.seed + 1,
        tokens_per_batch=recipe.tokens_per_batch,
        lengths=CANVAS_LENGTHS,
        shares=SHARES,
        longer_share=LONGER_SHARE,
    )
    model = train(model, batches, ADAPTATION, recipe.out / "training")
    tokenizer.save_pretrained(recipe.out)
    model.save_pretrained(recipe.out, dtype="bfloat16")


if __name__ == "__main__":
    main(tyro.cli(Recipe))
