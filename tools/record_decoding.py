"""Record answers of the decoding loops that the authors of each family published.

    python tools/record_decoding.py tests/golden/decoding.json dllm=FOLDER LLaDA=FOLDER ...

Each FOLDER is a checkout:

    dllm              github.com/ZHZisZZ/dllm
    LLaDA             github.com/ML-GSAI/LLaDA
    Open-dLLM         github.com/pengzhangzhi/Open-dLLM
    Fast-dLLM         github.com/NVlabs/Fast-dLLM, with its folder v2
    Stable-DiffCoder  a folder with the file modeling_stable_diffcoder.py of the model card

Cases of sources that are not given stay as recorded. The loops run as published, with the settings
of their scripts at temperature 0, and answers of 64 tokens. dllm's and Stable-DiffCoder's model
classes are their own, the others are transformers'. Weights are those of `family_cases`, with a
final norm that is larger, so that the models are surer. MASK is excluded from the logits, because
no trained model proposes it. A prompt whose answer differs in float64 is replaced: there, a
numerical tie decides. Needs torch and transformers 5.3.0: later versions renamed arguments that the
published code uses.
"""

import hashlib
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers
from family_cases import KINDS, random_prompt
from record_families import CLASSES, RULES, build

NEW_TOKENS = 64
# Lengths of the prompts: some end within a block of 4, 8 or 32, and some with it.
LENGTHS = (19, 24, 27, 35, 40, 43, 51, 56, 59, 64)
# Prompts that are tried at most.
TRIED = 30
# The token that fills rows in dllm's code, where BD3LM attends to none of it: answers of dllm have none.
PAD = 2
# Returns the prompt [1, t] and its answer [1, t + n].
Loop = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]

# Name of a case: source, kind of model, fields of its config.json, factor of its final norm, and
# the settings of the loop.
CASES: dict[str, tuple[str, str, dict[str, Any], float, dict[str, Any]]] = {
    # generate.py; eval scripts with half as many steps
    "llada": ("LLaDA", "llada", {}, 2, {"steps": 64, "block_length": 32}),
    "llada, 2 tokens a step": ("LLaDA", "llada", {}, 2, {"steps": 32, "block_length": 32}),
    # examples/a2d/mdlm/eval.sh and sample.py
    "mdlm": ("dllm", "a2d-qwen3-mdlm", {}, 2, {"steps": 64, "block_size": 64}),
    "mdlm in blocks": ("dllm", "a2d-qwen3-mdlm", {}, 2, {"steps": 64, "block_size": 32}),
    # examples/a2d/bd3lm/eval.sh and sample.py
    "bd3lm": (
        "dllm", "a2d-qwen3-bd3lm", {"block_size": 32}, 2, {"steps": 64, "block_size": 32},
    ),
    # eval/eval_completion/run_eval.sh; with another order; several rounds of remasking
    "open-dcoder": ("Open-dLLM", "open-dcoder", {}, 1, {"steps": 64, "alg": "p2", "top_p": 0.95}),
    "open-dcoder, maskgit_plus": (
        "Open-dLLM", "open-dcoder", {}, 1, {"steps": 64, "alg": "maskgit_plus", "top_p": 0.95},
    ),
    "open-dcoder, 24 steps": (
        "Open-dLLM", "open-dcoder", {}, 1, {"steps": 24, "alg": "p2", "top_p": 0.95},
    ),
    # v2/eval.py
    "fast-dllm-v2": (
        "Fast-dLLM", "fast-dllm-v2", {"bd_size": 32}, 4,
        {"block_size": 32, "small_block_size": 8, "threshold": 0.9},
    ),
    "fast-dllm-v2, cache of the block": (
        "Fast-dLLM", "fast-dllm-v2", {"bd_size": 32}, 4,
        {"block_size": 32, "small_block_size": 8, "threshold": 0.9, "use_block_cache": True},
    ),
    # README.md
    "stable-diffcoder": (
        "Stable-DiffCoder", "stable-diffcoder", {}, 2,
        {"steps": 64, "block_length": 4, "threshold": None},
    ),
}  # fmt: skip


def load(path: Path) -> ModuleType:
    """Import a file without the packages around it, which need more than its code does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FullAttention(torch.nn.Module):
    """A model of transformers in which each position attends to all of them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.config, self.device = model, model.config, torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, **_: object) -> Any:
        mask = torch.zeros(1, 1, input_ids.shape[1], input_ids.shape[1])
        return self.model(input_ids, attention_mask=mask, use_cache=False)


class BlockCache(transformers.DynamicCache):
    """Keys and values of the text up to the end of a block, of which a pass rewrites some."""

    # The first position that the pass rewrites; None adds to the cache.
    start: int | None = None

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *arguments: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.start is None:
            return super().update(keys, values, layer, *arguments)
        stored = self.layers[layer]
        rows = slice(self.start, self.start + keys.shape[2])
        stored.keys[:, :, rows], stored.values[:, :, rows] = keys, values
        return stored.keys, stored.values


class Blocks(torch.nn.Module):
    """What Fast-dLLM v2's loop takes for a model.

    Its cache of earlier blocks is the tokens that it stands for; that of the block is keys and values.
    """

    def __init__(self, model: torch.nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size, self.device = model, size, torch.device("cpu")

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: torch.Tensor | None = None,
        update_past_key_values: bool = False,
        use_block_cache: bool = False,
        block_past_key_values: BlockCache | None = None,
        replace_position: int = 0,
        **_: object,
    ) -> SimpleNamespace:
        past = input_ids[:, :0] if past_key_values is None else past_key_values
        if block_past_key_values is not None:
            # A part of the block: it attends to all of the block, and to what is before it.
            start = block_past_key_values.start = past.shape[1] + replace_position
            length = block_past_key_values.layers[0].keys.shape[2]
            positions = torch.arange(start, start + input_ids.shape[1])[None]
            mask = torch.zeros(1, 1, input_ids.shape[1], length)
            return self.model(
                input_ids, attention_mask=mask, position_ids=positions, use_cache=True,
                past_key_values=block_past_key_values,
            )  # fmt: skip
        cache = BlockCache() if use_block_cache else None
        tokens = torch.cat([past, input_ids], dim=1)
        block = torch.arange(tokens.shape[1]) // self.size
        mask = torch.where(block[None] <= block[:, None], 0.0, torch.finfo(torch.float32).min)
        logits = self.model(
            tokens,
            attention_mask=mask[None, None],
            use_cache=use_block_cache,
            past_key_values=cache,
        ).logits
        return SimpleNamespace(
            logits=logits[:, past.shape[1] :],
            past_key_values=tokens if update_past_key_values else past_key_values,
            block_past_key_values=cache,
        )

    def sample_with_top_p(self, logits: torch.Tensor, **_: object) -> tuple[torch.Tensor, ...]:
        """Return the most likely tokens and all probabilities, as theirs at temperature 0."""
        probabilities = torch.softmax(logits, dim=-1)
        return probabilities.argmax(dim=-1), probabilities


def loop_of(source: str, folder: Path, mask_id: int, settings: dict[str, Any]) -> Loop:
    """Return the published loop of a source, with its settings."""
    if source == "LLaDA":
        generate = load(folder / "generate.py").generate
        return lambda model, prompt: generate(
            FullAttention(model), prompt, gen_length=NEW_TOKENS, mask_id=mask_id, **settings
        )
    if source == "Open-dLLM":
        code = load(folder / "veomni/models/transformers/qwen2/generation_utils.py")
        mixed = type("Mixed", (FullAttention, code.MDMGenerationMixin), {})
        config = code.MDMGenerationConfig(
            mask_token_id=mask_id, max_new_tokens=NEW_TOKENS, temperature=0.0, **settings
        )
        return lambda model, prompt: mixed(model).diffusion_generate(prompt, config)
    if source == "Fast-dLLM":
        code = load(folder / "v2/generation_functions.py")
        sample = code.Fast_dLLM_QwenForCausalLM.batch_sample
        # The answer ends with a block, and the first token of the next.
        return lambda model, prompt: sample(
            Blocks(model, settings["block_size"]), prompt, SimpleNamespace(pad_token_id=PAD),
            max_new_tokens=NEW_TOKENS, min_len=prompt.shape[1], seq_len=torch.tensor([prompt.shape[1]]),
            mask_id=mask_id, stop_token=-1, **settings,
        )[0][None, :-1]  # fmt: skip
    if source == "Stable-DiffCoder":
        return lambda model, prompt: model.generate(
            prompt, gen_length=NEW_TOKENS, mask_id=mask_id, **settings
        )
    return dllm_loop(folder, mask_id, settings)


def dllm_loop(folder: Path, mask_id: int, settings: dict[str, Any]) -> Loop:
    """Return dllm's sampler of mdlm, or of bd3lm."""
    # Packages without their own code, which imports far more than the samplers do.
    for package in ("dllm", "dllm.core", "dllm.core.samplers"):
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder.joinpath(*package.split(".")))]
    tokens = SimpleNamespace(mask_token_id=mask_id, pad_token_id=PAD, bos_token_id=None)

    def answer(model: torch.nn.Module, prompt: torch.Tensor) -> torch.Tensor:
        name = "BD3LM" if hasattr(model.config, "block_size") else "MDLM"
        code = importlib.import_module(f"dllm.core.samplers.{name.lower()}")
        # MDLM fills its canvas with it. BD3LM stops at it, here at none.
        tokens.eos_token_id = None if name == "BD3LM" else PAD
        sampler = getattr(code, f"{name}Sampler")(model=model, tokenizer=tokens)
        config = getattr(code, f"{name}SamplerConfig")(max_new_tokens=NEW_TOKENS, **settings)
        found = sampler.sample([prompt[0]], config)
        # BD3LM pads the prompt on the left to whole blocks.
        return found[:, -prompt.shape[1] - NEW_TOKENS :]

    return answer


def classes_of(source: str, folder: Path, kind: str) -> tuple[type, type]:
    """Return the classes of configuration and model: the authors', where they run alone."""
    decoder = RULES[kind][0]
    if source == "dllm":
        code = load(folder / f"dllm/pipelines/a2d/models/{decoder}/modeling_{decoder}.py")
        name = f"A2D{decoder.capitalize()}"
        return getattr(code, f"{name}Config"), getattr(code, f"{name}LMHeadModel")
    if source == "Stable-DiffCoder":
        code = load(folder / "modeling_stable_diffcoder.py")
        return CLASSES[decoder][0], code.StableDiffcoderForCausalLM
    return CLASSES[decoder]


def record(name: str, folder: Path) -> dict[str, Any]:
    """Record the answers of a case to ten prompts."""
    source, kind, fields, factor, settings = CASES[name]
    mask_id = KINDS[kind]["mask_token_id"]
    loop = loop_of(source, folder, mask_id, settings)
    classes = classes_of(source, folder, kind)
    # dllm's masks of blocks are for torch's own attention.
    attention = "sdpa" if source == "dllm" else "eager"
    model = build(kind, 0, classes, **fields, attn_implementation=attention)
    with torch.no_grad():
        model.model.norm.weight.mul_(factor)

    def exclude_mask(_: object, __: object, output: Any) -> None:
        output.logits[..., mask_id] = -1e9

    model.register_forward_hook(exclude_mask)
    prompts, answers, seed = [], [], 0
    while len(prompts) < len(LENGTHS):
        if seed == TRIED:
            raise ValueError(f"{name}: only {len(prompts)} of {seed} prompts have no numerical tie")
        length = LENGTHS[len(prompts)]
        prompt = torch.from_numpy(random_prompt(seed, length)).long()[None]
        found, exact = (
            loop(each, prompt.clone())[0, length:].tolist()
            for each in (model.float(), model.double())
        )
        if found == exact and (source != "dllm" or PAD not in found):
            prompts.append([seed, length])
            answers.append(found)
        seed += 1
    print(f"{name}: {seed - len(prompts)} prompts replaced", answers[0])
    return {
        "source": source, "kind": kind, "fields": fields, "factor": factor, "settings": settings,
        "prompts": prompts, "answers": answers,
    }  # fmt: skip


def describe_source(folder: Path) -> str:
    """Return the commit of a checkout, or the hash of its only file."""
    if (folder / ".git").exists():
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return "commit " + subprocess.check_output(command, text=True).strip()
    (file,) = folder.glob("*.py")
    return f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()} of {file.name}"


def main(path: str, *sources: str) -> None:
    folders = {name: Path(folder) for name, _, folder in (each.partition("=") for each in sources)}
    file = Path(path)
    before = json.loads(file.read_text()) if file.exists() else {"sources": {}, "cases": {}}
    described = {name: describe_source(folder) for name, folder in folders.items()}
    cases = {
        name: record(name, folders[source]) if source in folders else before["cases"][name]
        for name, (source, *_) in CASES.items()
        if source in folders or name in before["cases"]
    }
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    recorded = {"versions": versions, "sources": before["sources"] | described, "cases": cases}
    file.write_text(json.dumps(recorded) + "\n")
    print(f"{path}: {len(cases)} cases of {len(LENGTHS)} answers")


if __name__ == "__main__":
    main(*sys.argv[1:])
