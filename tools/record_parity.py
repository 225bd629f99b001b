"""Record the outputs of the PyTorch reference on a checkpoint, for `diffucoder parity check`.

    python tools/record_parity.py --pytorch-model ./DiffuCoder-7B-Instruct --out recorded

The reference is `jax_lm.benchmark.torch_reference`, with a written-out attention mask. Needs torch
and transformers (extra `parity`).
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jax_lm.benchmark.parity import case_options
from jax_lm.benchmark.torch_reference import TorchBackend, diffusion_generate
from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.checkpoints.stored import save_tensors
from jax_lm.host.declared import run_main
from jax_lm.host.interruption import remove_on_exit
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.options import require_sizes

# Every order with as many steps as tokens (24) and with fewer; some with filters, with padding, and
# one with more steps than tokens.
CASES: tuple[dict[str, Any], ...] = (
    {"alg": "entropy", "steps": 24},
    {"alg": "entropy", "steps": 10, "top_k": 50},
    {"alg": "entropy", "steps": 24, "padded": True},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 50},
    {"alg": "maskgit_plus", "steps": 10},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 50, "padded": True},
    {"alg": "topk_margin", "steps": 24},
    {"alg": "topk_margin", "steps": 10, "top_k": 50},
    {"alg": "topk_margin", "steps": 24, "padded": True},
    {"alg": "entropy", "steps": 24, "top_p": 0.7, "top_k": 50},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 5},
    {"alg": "entropy", "steps": 5, "top_p": 0.9, "top_k": 20},
    {"alg": "entropy", "steps": 48},
)
# Greedy, unless a case says otherwise.
DEFAULTS = {"padded": False, "temperature": 0.0, "alg_temp": 0.0, "top_p": None, "top_k": None}


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Run the PyTorch reference on a checkpoint, and record its outputs for `parity check`.

    Attributes:
        pytorch_model: folder of a Dream or DiffuCoder checkpoint in the Hugging Face layout.
        out: output folder; must not exist.
        prompt_tokens: length of the recorded prompts.
        max_new_tokens: length of the recorded answers.
        batch_size: rows of each recording.
        seed: seed of the random prompts.
    """

    pytorch_model: Path
    out: Path
    prompt_tokens: int = 13
    max_new_tokens: int = 24
    batch_size: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        require_sizes(self, "batch_size", "prompt_tokens", "max_new_tokens")


class MaskedBackend(TorchBackend):
    """A checkpoint in PyTorch whose rows may be padded, as the attention mask is written out.

    Attributes:
        present: 0 at padding [b, t], whose keys are masked and whose positions do not count; None
            if there is none.
    """

    attention = "eager"
    present: torch.Tensor | None = None

    @torch.no_grad()
    def output(self, ids: torch.Tensor, **options: Any) -> Any:
        """Return what transformers computes for ids [b, t]."""
        batch, length = ids.shape
        # Added to the scores [b, 1, t, t]: 0 shows a key, the least number hides it.
        mask = torch.zeros(batch, 1, length, length, dtype=self.model.dtype)
        positions = torch.arange(length).expand(batch, length)
        if self.present is not None:
            least = torch.finfo(self.model.dtype).min
            mask = mask.masked_fill(self.present[:, None, None, :] == 0, least)
            # present [0, 0, 1, 1, 1] -> positions [0, 0, 0, 1, 2]
            positions = (self.present.cumsum(-1) - 1).clamp(min=0)
        return self.model(
            ids, attention_mask=mask, position_ids=positions, use_cache=False, **options
        )

    def evaluate(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(ids).logits


def record_reference(recording: Recording) -> None:
    """Write checkpoint/, golden.safetensors and cases.json to the new folder.

    Raises:
        CheckpointError: the source is not a folder with a Dream checkpoint, or the folder exists.
    """
    folder, out = huggingface.resolve(recording.pytorch_model), recording.out
    config = DreamForCausalLM.read_config(folder)
    if config.mask_token_id is None:
        raise CheckpointError(f"{folder} has no mask_token_id: not a masked-diffusion model")
    if out.exists():
        raise CheckpointError(f"out={str(out)!r} exists; choose a new folder")
    # Written under another name first, so that `out` is complete or absent.
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with remove_on_exit(partial):
        (partial / "checkpoint").mkdir(parents=True)
        # The recording is checked without the source, so copy the checkpoint.
        for file in sorted(folder.iterdir()):
            if file.suffix in (".json", ".safetensors"):
                shutil.copy(file, partial / "checkpoint")
        golden, cases = reference_outputs(MaskedBackend(folder, config), config, recording)
        save_tensors(
            partial / "golden.safetensors",
            {name: np.ascontiguousarray(value) for name, value in golden.items()},
        )
        (partial / "cases.json").write_text(
            json.dumps({"generate": cases}, indent=1) + "\n", encoding="utf-8"
        )
        partial.rename(out)


def reference_outputs(
    backend: MaskedBackend, config: DreamConfig, recording: Recording
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Compute everything that is recorded: tensors by name, and the settings of each generation.

    The backend computes in float32 and is left in bfloat16.
    """
    generator = torch.Generator().manual_seed(recording.seed)
    length = recording.prompt_tokens + recording.max_new_tokens
    # No MASK among the ids: drawn below it.
    ids = torch.randint(
        0,
        min(config.vocab_size, backend.mask_id),
        (recording.batch_size, length),
        generator=generator,
    )
    present = torch.ones_like(ids)
    # Rows are padded on the left, each more than the last: 13 prompt tokens -> 0, 4, 8 of padding
    for row in range(recording.batch_size):
        present[row, : row * (recording.prompt_tokens // 3)] = 0
    # Forward passes
    exact = backend.output(ids, output_hidden_states=True)
    golden = {
        f"forward.hidden_states.{layer}": state.numpy()
        for layer, state in enumerate(exact.hidden_states)
    }
    golden |= {"forward.input_ids": ids.numpy(), "forward.logits": exact.logits.numpy()}
    golden |= {"padded.input_ids": ids.numpy(), "padded.attention_mask": present.numpy()}
    backend.present = present
    golden["padded.logits"] = backend.evaluate(ids).numpy()
    # Generations
    prompts, cases = ids[:, : recording.prompt_tokens], []
    for number, case in enumerate(CASES):
        case = DEFAULTS | case | {"case": number, "max_new_tokens": recording.max_new_tokens}
        backend.present = present if case["padded"] else None
        history = diffusion_generate(backend, prompts, case_options(case))
        name = f"generate.{number}"
        golden |= {f"{name}.input_ids": prompts.numpy(), f"{name}.sequences": history[-1].numpy()}
        golden[f"{name}.history"] = torch.stack(history).numpy()
        if case["padded"]:
            golden[f"{name}.attention_mask"] = present[:, : recording.prompt_tokens].numpy()
        cases.append(case)
    # Last, as it rounds the weights in place.
    backend.model.to(torch.bfloat16)
    backend.present = None
    golden["forward_bf16.logits"] = backend.evaluate(ids).float().numpy()
    return golden, cases


if __name__ == "__main__":
    asked = run_main(Recording)
    try:
        record_reference(asked)
    except CheckpointError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"recorded {len(CASES)} generations to {asked.out}")
