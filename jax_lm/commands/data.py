"""The commands that prepare data: `diffucoder data prepare-acecode`, `data tokenize`."""

from jax_lm import terminal
from jax_lm.arguments.data import PrepareAcecode, Tokenize
from jax_lm.checkpoints import huggingface
from jax_lm.data.acecode import prepare_acecode
from jax_lm.data.sources import open_source
from jax_lm.data.tokenizing import Tokenization, tokenize
from jax_lm.tokenizer import DiffuCoderTokenizer


def run_data_prepare_acecode(arguments: PrepareAcecode) -> int:
    """Write the prompts, and say how many there are."""
    terminal.show_log()
    print(prepare_acecode(arguments.data, arguments.out, arguments.difficulty))
    return 0


def run_data_tokenize(arguments: Tokenize) -> int:
    """Write the shards that are missing, and say what there is."""
    terminal.show_log()
    folder = huggingface.resolve(arguments.model, with_weights=False)
    options = {"split": arguments.split, "subset": arguments.subset, "streaming": arguments.streaming}
    job = Tokenization(
        source=open_source(arguments.data, arguments.num_shards, **options),
        tokenizer=str(folder),
        fingerprint=DiffuCoderTokenizer.from_pretrained(folder, adds_mask=arguments.kind == "text").fingerprint,
        kind=arguments.kind,
        max_length=arguments.max_length,
        text_column=arguments.text_column,
    )
    print(tokenize(job, arguments.out, arguments.processes))
    return 0
