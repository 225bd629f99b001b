"""Record the answers of d3LLM's own multi-block decoding for small random models.

    python tools/record_d3llm.py FOLDER tests/golden/multi_block.json

FOLDER is a checkout of github.com/hao-ai-lab/d3LLM. Its loop runs as published, with the settings of
its scripts. The model is the Dream of `record_families`, with MASK excluded from the logits, as no
trained model proposes it. Needs torch and transformers (extra `parity`).
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from family_cases import KINDS, random_rows
from record_families import build

LOOP = Path("d3llm/d3llm_DREAM/d3llm_dream_generate_util.py")
NAME, SHAPE = "dream", 0
MASK = KINDS[NAME]["mask_token_id"]
# Answers of 60 columns in blocks of 12; the scale of the weights of the head makes a model surer.
COLUMNS, BLOCK, PROMPTS, SCALE = 60, 12, 10, 6.0
# The scripts' settings, and others that decide more or fewer tokens at once.
SETTINGS = {
    "published": {"threshold": 0.5, "block_add_threshold": 0.1, "decoded_token_threshold": 0.95},
    "eager": {"threshold": 1.2, "block_add_threshold": 0.0, "decoded_token_threshold": 0.2},
    "sequential": {"threshold": 0.9, "block_add_threshold": 1.0, "decoded_token_threshold": 1.0},
}


class Authors:
    """What their loop takes for a model."""

    def __init__(self, loop: Any) -> None:
        self.model = build(NAME, SHAPE)
        with torch.no_grad():
            self.model.lm_head.weight.mul_(SCALE)
        self.sample = loop.DreamGenerationMixin._sample_multi_block
        self.device, self.forwards = "cpu", 0

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor, *_: object) -> SimpleNamespace:
        # Their own count has one more where a stop token ends the loop.
        self.forwards += 1
        mask = torch.zeros(1, 1, tokens.shape[1], tokens.shape[1])
        logits = self.model(tokens, attention_mask=mask, use_cache=False).logits
        # Row p predicts position p + 1; their loop shifts, as ours does.
        logits[..., MASK] = -1e9
        return SimpleNamespace(logits=logits)

    def answer(self, prompt: np.ndarray, stop: int | None, settings: dict[str, float]) -> dict:
        tokens = torch.from_numpy(prompt).long()[None]
        config = SimpleNamespace(
            return_dict_in_generate=False,
            max_length=tokens.shape[1] + COLUMNS,
            mask_token_id=MASK,
            temperature=0.0,
            alg="entropy_threshold",
            eos_token_id=stop,
        )
        self.forwards = 0
        found, _ = self.sample(
            self, tokens, None, config, block_size=BLOCK, early_stop=stop is not None, **settings
        )
        return {"tokens": found[0, tokens.shape[1] :].tolist(), "forwards": self.forwards}


def main(checkout: str, path: str) -> None:
    sys.path.insert(0, str(Path(checkout) / LOOP.parent))
    authors = Authors(importlib.import_module(LOOP.stem))
    rows = random_rows(NAME, SHAPE)[0][0]
    cases = []
    for name, settings in SETTINGS.items():
        for number in range(PROMPTS):
            drawn = np.random.default_rng(number).integers(6, 60, len(rows)).astype(np.int32)
            whole = authors.answer(drawn, None, settings)
            # A token of the answer ends it, in every second case.
            stop = whole["tokens"][20] if number % 2 else None
            case = {"settings": name, "prompt": drawn.tolist(), "stop": stop}
            cases.append(case | (whole if stop is None else authors.answer(drawn, stop, settings)))
    shape = {"columns": COLUMNS, "block": BLOCK, "scale": SCALE}
    recorded = shape | {"settings": SETTINGS, "cases": cases}
    Path(path).write_text(json.dumps(recorded) + "\n")
    forwards = [case["forwards"] for case in cases]
    print(f"{path}: {len(cases)} answers of {COLUMNS} tokens in {min(forwards)} to {max(forwards)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
