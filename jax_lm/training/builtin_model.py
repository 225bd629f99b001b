"""Recipe of the built-in model: its tokenizer, its shape, its training run.

    python -m jax_lm.training.builtin_model --out out/builtin

rebuilds it from nothing on a CPU; `runs/builtin_model.sh` also measures the result.
"""

import json
import logging
import random
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from flax import nnx

from jax_lm.data.corpus import draw_task
from jax_lm.data.rows import stream_batches
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
CANVAS_LENGTHS = (64, 96, 128, 192, 352)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Train the built-in model.

    Attributes:
        out: folder for the checkpoint, the tokenizer and metrics.jsonl.
        steps: optimizer steps.
        tokens_per_batch: tokens of a batch, spare canvas included.
        longer_share: share of rows on a canvas longer than they need.
        seed: of the corpus, the initial weights and the masks.
    """

    out: Path
    steps: int = 6000
    tokens_per_batch: int = 4096
    longer_share: float = 0.08
    seed: int = 0
    adaptation: dict = field(
        default_factory=lambda: {"learning_rate": 3e-3, "muon_learning_rate": 0.02, "compute_dtype": "bfloat16"}
    )


def build_tokenizer(seed: int) -> DiffuCoderTokenizer:
    """A byte-level BPE over the training side of the corpus, with Dream's special tokens."""
    rng = random.Random(seed)
    tasks = (draw_task(rng) for _ in range(TOKENIZER_TASKS))
    texts = (f"{task.prompt}{task.completion}\n{task.description}" for task in tasks)
    tokens = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
    return train_bpe(texts, vocab_size=VOCABULARY, special_tokens=tokens, chat_template=CHAT_TEMPLATE)


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
    recipe.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(recipe.seed)
    tokenizer.save_pretrained(recipe.out)
    model = DreamForCausalLM(model_config(tokenizer), rngs=nnx.Rngs(recipe.seed))
    batches = stream_batches(
        tokenizer,
        seed=recipe.seed + 1,
        tokens_per_batch=recipe.tokens_per_batch,
        lengths=CANVAS_LENGTHS,
        longer_share=recipe.longer_share,
    )
    config = AdaptationConfig(steps=recipe.steps, seed=recipe.seed, **recipe.adaptation)
    model = train(model, batches, config, recipe.out)
    model.save_pretrained(recipe.out, dtype="bfloat16")
    generation = {"max_new_tokens": 128, "temperature": 0.0, "alg": "entropy"}
    (recipe.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Recipe))
