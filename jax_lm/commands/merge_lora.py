"""`diffucoder merge-lora`: add an adapter to the weights of its model."""

from jax_lm.arguments.training import MergeLora
from jax_lm.checkpoints import huggingface
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer


def run(arguments: MergeLora) -> int:
    """Load model and adapter, and write the sum as a checkpoint."""
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    model = DreamForCausalLM.from_pretrained(folder)
    lora.load_adapter(model, arguments.adapter)
    lora.merge(model)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    print(f"wrote {arguments.out}")
    return 0
