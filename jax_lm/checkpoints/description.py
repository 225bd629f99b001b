"""The files of a model other than its weights: tokenizer, generation config, licence and code.

A model derived from another one gets these files too, so that transformers, servers and this
package can load it like its source. Code is copied as a file; it is never executed.
"""

import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import LICENCE_FILES
from jax_lm.config import DreamConfig
from jax_lm.host.files import output_folder
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError
from jax_lm.tokenizer.files import TOKENIZER_CONFIG, TOKENIZER_FILES, read_optional, write_json

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
# An entry of `auto_map` for a class in a file of the same folder: file.Class. A class in another
# repository is owner/name--file.Class.
LOCAL_CLASS = re.compile(r"(\w+)\.\w+")
# An import from a module of the same folder: `from .module import …`.
NEIGHBOUR = re.compile(r"^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)


def write_description(
    folder: Path, config: DreamConfig, tokenizer: DiffuCoderTokenizer | None, source: Path | None
):
    """Write tokenizer, generation config, licence and code of a new model.

    Files of the source are copied; files that it lacks and transformers needs are written.

    Args:
        folder: folder of the new model.
        config: configuration of the new model.
        tokenizer: tokenizer of the new model; None if it has none.
        source: folder of the model that it was derived from; None if there is none.
    """
    output_folder(folder)
    if source is not None:
        model_type = huggingface.read_json(source, "config.json").get("model_type")
        copy_files(source, folder, same_model=model_type == config.model_type)
    if tokenizer is not None:
        if source is None or not is_tokenizer_of(tokenizer, source):
            tokenizer.save_pretrained(folder)
        complete(folder, config, tokenizer)


def is_tokenizer_of(tokenizer: DiffuCoderTokenizer, source: Path) -> bool:
    """Whether a tokenizer equals the one stored in a folder, with no tokens added since."""
    try:
        return tokenizer.fingerprint == DiffuCoderTokenizer.from_pretrained(source).fingerprint
    except TokenizerError:
        return False


def copy_files(source: Path, folder: Path, *, same_model: bool):
    """Copy tokenizer and licence, and for the same architecture also code and generation config.

    Tokenizer files and the generation config in `folder` are removed first; other files stay.
    """
    copied = matching_files(source, (*TOKENIZER_FILES, *LICENCE_FILES))
    if same_model:
        copied |= {*matching_files(source, [GENERATION_CONFIG]), *code_files(source)}
    for name in (*TOKENIZER_FILES, GENERATION_CONFIG):
        # A file left by another model would be taken for a file of this one.
        (folder / name).unlink(missing_ok=True)
    for path in copied:
        shutil.copyfile(path, folder / path.name)


def matching_files(folder: Path, patterns: Iterable[str]) -> set[Path]:
    """Return the files of a folder whose names match one of the patterns."""
    return {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}


def complete(folder: Path, config: DreamConfig, tokenizer: DiffuCoderTokenizer):
    """Write the missing files and fields from which transformers learns the special tokens."""
    tokenizer.save_settings(folder)
    if not (folder / GENERATION_CONFIG).is_file():
        fields = {
            "bos_token_id": config.bos_token_id,
            "eos_token_id": tokenizer.end_id,
            "pad_token_id": tokenizer.pad_id,
            "mask_token_id": config.mask_token_id,
        }
        write_json(folder / GENERATION_CONFIG, fields)


def code_files(folder: Path) -> list[Path]:
    """Return the Python files named by `auto_map` in a folder, and the files that they import.

    Logs a warning for each absent file, without which transformers cannot load the model.
    """
    files = set()
    # each module once, in order
    pending = [*dict.fromkeys(auto_map_modules(folder))]
    while pending:
        name = pending.pop()
        path = folder / f"{name}.py"
        if not path.is_file():
            logger.warning(
                "%s lacks %s.py, which its code needs: transformers cannot load it", folder, name
            )
        elif path not in files:
            files.add(path)
            pending += NEIGHBOUR.findall(path.read_text(encoding="utf-8", errors="replace"))
    return sorted(files)


def auto_map_modules(folder: Path) -> Iterator[str]:
    """Yield the modules named by `auto_map` in config.json and tokenizer_config.json."""
    for file in ("config.json", TOKENIZER_CONFIG):
        auto_map: Any = read_optional(folder / file).get("auto_map")
        # {"AutoModel": "modeling_dream.DreamModel"}, or a list for slow and fast tokenizers:
        # {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", null]}; anything else is ignored
        for value in auto_map.values() if isinstance(auto_map, dict) else ():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and (match := LOCAL_CLASS.fullmatch(name)):
                    yield match[1]
