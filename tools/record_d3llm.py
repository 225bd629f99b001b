"""Record the answers of d3LLM's own multi-block decoding for small random models.

    python tools/record_d3llm.py FOLDER tests/golden/multi_block.json

FOLDER is a checkout of github.com/hao-ai-lab/d3LLM. Its loops run as published, with the settings of
its scripts. The model is their own Dream with random weights, and with MASK excluded from the
logits, as no trained model proposes it. Needs torch and transformers 4 (extra `parity`); recorded with
4.56.2.
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
MODEL = "utils.utils_Dream.model.modeling_dream"
NAME, SHAPE = "dream", 0
MASK = KINDS[NAME]["mask_token_id"]
DREAM = {"attn_implementation": "sdpa", "mask_token_id": MASK, "pad_token_id": 0}
# Answers of 60 columns in blocks of 12; the scale of the weights of the head makes a model surer.
COLUMNS, BLOCK, PROMPTS, SCALE = 60, 12, 10, 6.0
# The scripts' settings, and others that decide more or fewer tokens at once.
SETTINGS = {
    "published": {"threshold": 0.5, "block_add_threshold": 0.1, "decoded_token_threshold": 0.95},
    "eager": {"threshold": 1.2, "block_add_threshold": 0.0, "decoded_token_threshold": 0.2},
    "sequential": {"threshold": 0.9, "block_add_threshold": 1.0, "decoded_token_threshold": 1.0},
}
# With a cache: the settings, the passes before a finished block is stored, and those from one refresh to
# the next. Their scripts have delays of 1, 2 and 32 for blocks of 32, and no refresh by the clock.
NO_REFRESH = 10000
DELAYS = [
    ("published", 1, NO_REFRESH),
    ("published", 2, NO_REFRESH),
    ("published", 8, NO_REFRESH),
    ("published", 2, 5),
    ("sequential", 4, NO_REFRESH),
]


class Authors:
    """What their loops take for a model."""

    def __init__(self, loop: Any, model: Any) -> None:
        self.model = build(NAME, SHAPE, (model.DreamConfig, model.DreamModel), **DREAM)
        with torch.no_grad():
            self.model.lm_head.weight.mul_(SCALE)
        self.loops = loop.DreamGenerationMixin
        self.device, self.rows = "cpu", []

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor, *given: Any, **cache: Any) -> Any:
        # Their own count has one more where a stop token ends the loop.
        self.rows.append(tokens.shape[1])
        outputs = self.model(tokens, *given, **cache)
        # Row p predicts position p + 1; their loop shifts, as ours does.
        outputs.logits[..., MASK] = -1e9
        return outputs

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
        self.rows = []
        is_cached = "cache_delay_iter" in settings
        loop = (
            self.loops._sample_multi_block_kv_cache if is_cached else self.loops._sample_multi_block
        )
        found, _ = loop(
            self, tokens, None, config, block_size=BLOCK, early_stop=stop is not None, **settings
        )
        answer = {"tokens": found[0, tokens.shape[1] :].tolist(), "forwards": len(self.rows)}
        return answer | ({"rows": self.rows} if is_cached else {})


def main(checkout: str, path: str) -> None:
    sys.path[:0] = [checkout, str(Path(checkout) / LOOP.parent)]
    authors = Authors(importlib.import_module(LOOP.stem), importlib.import_module(MODEL))
    length = random_rows(NAME, SHAPE)[0].shape[1]

    def record(name: str, **cache: int) -> list[dict]:
        cases = []
        settings = SETTINGS[name] | cache
        for number in range(PROMPTS):
            drawn = np.random.default_rng(number).integers(6, 60, length).astype(np.int32)
            whole = authors.answer(drawn, None, settings)
            # A token of the answer ends it, in every second case.
            stop = whole["tokens"][20] if number % 2 else None
            case = {"settings": name, **cache, "prompt": drawn.tolist(), "stop": stop}
            cases.append(case | (whole if stop is None else authors.answer(drawn, stop, settings)))
        forwards = [case["forwards"] for case in cases]
        print(f"{name} {cache}: {len(cases)} answers of {COLUMNS} tokens in {sorted(forwards)}")
        return cases

    shape = {"columns": COLUMNS, "block": BLOCK, "scale": SCALE}
    cases = [case for name in SETTINGS for case in record(name)]
    delayed = [
        case
        for name, delay, interval in DELAYS
        for case in record(name, cache_delay_iter=delay, refresh_interval=interval)
    ]
    recorded = shape | {"settings": SETTINGS, "cases": cases, "delayed": delayed}
    Path(path).write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
