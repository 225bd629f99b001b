"""What transformers and peft make of our files, and peft's own: run by test_transformers.py in a
process of its own.

python torch_side.py load FOLDER IDS OUT       tokenizer and logits of a folder, by its own code or as a Qwen2
python torch_side.py adapter BASE ADAPTER IDS OUT     logits of a Qwen2 with an adapter, and merged
python torch_side.py publish BASE CONFIG IDS OUT      an adapter of random numbers that peft writes, and its logits
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)  # fmt: skip


def as_qwen2(folder):
    """Transformers' own class, told to look both ways."""
    fields = json.loads((Path(folder) / "config.json").read_text())
    config = Qwen2Config(
        **{name: fields[name] for name in FIELDS if name in fields}, attn_implementation="sdpa"
    )
    model = Qwen2ForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    return model


@torch.no_grad()
def logits(model, ids, **options):
    return model(torch.from_numpy(np.load(ids)).long(), **options).logits.float().numpy()


def load(folder, ids, out):
    fields = json.loads((Path(folder) / "config.json").read_text())
    has_code = "auto_map" in fields
    found = {
        "qwen2": logits(
            as_qwen2(folder), ids, attention_mask={"full_attention": None}, use_cache=False
        )
    }
    if has_code:
        model = AutoModel.from_pretrained(
            folder, trust_remote_code=True, dtype=torch.float32
        ).eval()
        found["own"] = logits(model, ids)
        assert type(model).__name__ == "DreamModel", type(model)
        assert AutoConfig.from_pretrained(folder, trust_remote_code=True).model_type == "Dream"
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=has_code)
    generation = transformers.GenerationConfig.from_pretrained(folder)
    text = "def add(a, b):\n    return a + b<|im_end|>"
    names = (
        "eos_token",
        "pad_token",
        "mask_token",
        "eos_token_id",
        "pad_token_id",
        "mask_token_id",
    )
    told = {name: getattr(tokenizer, name) for name in names} | {
        "class": type(tokenizer).__name__,
        "ids": tokenizer(text)["input_ids"],
        "decoded": tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True),
        "size": len(tokenizer),
        "chat": tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False,
                                              add_generation_prompt=True),
        "generation": generation.to_dict(),
    }  # fmt: skip
    np.savez(out, **found)
    Path(f"{out}.json").write_text(json.dumps(told, default=str))


OPTIONS = {"attention_mask": {"full_attention": None}, "use_cache": False}


def adapter(base, folder, ids, out):
    from peft import PeftModel

    model = PeftModel.from_pretrained(as_qwen2(base), folder).eval()
    attached = logits(model.base_model.model, ids, **OPTIONS)
    merged = model.merge_and_unload()
    weights = {name: value.detach().numpy() for name, value in merged.state_dict().items()}
    np.savez(out, attached=attached, merged=logits(merged, ids, **OPTIONS), **weights)


def publish(base, config, ids, out):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(as_qwen2(base), LoraConfig(**json.loads(config))).eval()
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.1)
    model.save_pretrained(out)
    np.save(Path(out) / "logits.npy", logits(model.base_model.model, ids, **OPTIONS))


if __name__ == "__main__":
    {"load": load, "adapter": adapter, "publish": publish}[sys.argv[1]](*sys.argv[2:])
