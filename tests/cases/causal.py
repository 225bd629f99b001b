"""An autoregressive checkpoint of random weights over bytes."""

from dataclasses import replace

from flax import nnx
from tokenizers import AddedToken, models

from jax_lm.models.dream import DreamForCausalLM
from jax_lm.templates import GAP_TOKENS
from jax_lm.tokenizer import BYTES_OF_LETTERS, END_OF_TEXT, byte_level_bpe


def write_causal(folder, config, **changes):
    """Write a Qwen2 whose tokenizer has gap tokens and no mask; returns the folder."""
    backend = byte_level_bpe(models.BPE(vocab=dict(BYTES_OF_LETTERS), merges=[]))
    tokens = (END_OF_TEXT, *GAP_TOKENS)
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    sizes = {"mask_token_id": None, "vocab_size": 264, "initializer_range": 0.3} | changes
    config = replace(config, model_type="qwen2", **sizes)
    DreamForCausalLM(config, rngs=nnx.Rngs(0)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder
