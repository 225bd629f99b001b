"""`diffucoder adapt`: make an autoregressive model, or one from nothing, a masked-diffusion model."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from jax_lm import terminal
from jax_lm.training.settings import AdaptConfig


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Train masked diffusion on plain text, from an autoregressive Qwen2-family checkpoint or from nothing.

    Attention opens from causal to full over the first steps. Killed at any moment, the same command continues the run.

    Examples:
        diffucoder adapt --data code.jsonl --model Qwen/Qwen2.5-Coder-7B --out out/base --config runs/adapt_paper.yaml
        diffucoder adapt --data code.jsonl --model ./shape --from-scratch True --out out/base --length 512 --steps 2000

    Attributes:
        data: JSONL file; a row has "text".
        model: folder or hub id of the checkpoint; a tokenizer without a mask token is given one.
        out: folder of the run: metrics.jsonl, checkpoints/, and at its end model/.
        from_scratch: take only the shape (config.json) and the tokenizer, and draw the weights.
        mesh: devices that share the training, such as data=2,fsdp=4; one device if not given.
        config: recipe, a YAML file of these options; what is typed wins.
        settings: of the run.
    """

    data: Path
    model: str
    out: Path
    from_scratch: bool = False
    mesh: str | None = None
    config: Path | None = None
    settings: AdaptConfig = field(default_factory=AdaptConfig)

    def run(self) -> int:
        terminal.show_log()
        from flax import nnx

        from jax_lm.checkpoints import huggingface
        from jax_lm.data.conversations import read_samples, text_rows
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.sharding import MeshShape
        from jax_lm.tokenizer import DiffuCoderTokenizer
        from jax_lm.training.adaptation import adapt

        folder = huggingface.resolve(self.model, with_weights=not self.from_scratch)
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder, adds_mask=True)
        config = dataclasses.replace(
            DreamForCausalLM.read_config(folder), mask_token_id=None, pad_token_id=tokenizer.pad_id, model_type="Dream"
        )
        tokenizer.require_ids(mask_token_id=tokenizer.mask_id, vocab_size=config.vocab_size)
        config = dataclasses.replace(config, mask_token_id=tokenizer.mask_id)
        samples = read_samples(self.data, text_rows(tokenizer, self.settings.length))
        mesh = MeshShape.parse(self.mesh).mesh() if self.mesh else None
        if self.from_scratch:
            model = DreamForCausalLM(config, rngs=nnx.Rngs(self.settings.training.seed))
            model = model.on_mesh(mesh) if mesh else model
        else:
            model = DreamForCausalLM.from_pretrained(folder, mesh=mesh)
            model.config = config
        dtype = model.dtype
        finished = adapt(
            model,
            samples.rows,
            self.settings,
            self.out,
            pad_id=tokenizer.pad_id,
            identity={"data": samples.digest, "from_scratch": self.from_scratch},
        )
        (self.out / "refused.json").write_text(json.dumps(samples.refused, indent=1) + "\n", encoding="utf-8")
        if not finished:
            print(f"stopped with a checkpoint; the same command continues the run in {self.out}")
            return terminal.TERMINATED
        model.save_pretrained(self.out / "model", dtype=dtype)
        tokenizer.save_pretrained(self.out / "model")
        print(f"wrote {self.out / 'model'}")
        return 0
