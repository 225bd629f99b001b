"""What lies beside the weights of a model: its tokenizer, settings of generation, chat template, licence and code.

Whoever writes a model writes these too, so that transformers, servers and this package find in the new folder what they
found in the one that it was made of. Code is copied as a file; it is never executed.
"""

import logging
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import LICENCE_FILES
from jax_lm.config import DreamConfig
from jax_lm.host.files import output_folder
from jax_lm.tokenizer import (
    END_OF_TEXT,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    DiffuCoderTokenizer,
    TokenizerError,
    write_json,
)

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
LOCAL_CLASS = re.compile(r"(\w+)\.\w+")
"""How `auto_map` names a class in a file beside it; in another repository it would be owner/name--file.Class."""

NEIGHBOUR = re.compile(r"^\s*(?:from\s+\.(\w+)\s+import\b|import\s+\.(\w+))", re.MULTILINE)


def write_description(
    folder: Path, config: DreamConfig, tokenizer: DiffuCoderTokenizer | None, source: Path | None
) -> None:
    """Write beside new weights what the folder that they were made of has, and what that lacks.

    Args:
        folder: where the weights go.
        config: of the new model.
        tokenizer: of the new model; None where it has none.
        source: the folder that the model was made of; None for one made here.
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
    """Tell whether a tokenizer is that of a folder as it is, without tokens that it was given since."""
    try:
        return tokenizer.fingerprint == DiffuCoderTokenizer.from_pretrained(source).fingerprint
    except TokenizerError:
        return False


def require_elsewhere(folder: Path, source: Path | None) -> None:
    """Raise ValueError if something would be written over what it is made of."""
    if source is not None and folder.resolve() == source.resolve():
        raise ValueError(f"{folder} is what this is made of: write it elsewhere")


def copy_files(source: Path, folder: Path, *, same_model: bool) -> None:
    """Copy tokenizer and licence, and of the same model its code and settings of generation; others of these go."""
    copied = [source / name for name in TOKENIZER_FILES]
    copied += [path for path in sorted(source.iterdir()) if any(fnmatch(path.name, name) for name in LICENCE_FILES)]
    if same_model:
        copied += [source / GENERATION_CONFIG, *code_files(source)]
    for name in (*TOKENIZER_FILES, GENERATION_CONFIG):
        # Left by another model, it would be taken for this one's.
        (folder / name).unlink(missing_ok=True)
    for path in copied:
        if path.is_file():
            shutil.copyfile(path, folder / path.name)


def complete(folder: Path, config: DreamConfig, tokenizer: DiffuCoderTokenizer) -> None:
    """Write what a folder lacks for transformers to know its special tokens."""
    tokenizer.save_settings(folder)
    if not (folder / GENERATION_CONFIG).is_file():
        ids = {"eos_token_id": tokenizer.token_id(END_OF_TEXT), "pad_token_id": tokenizer.pad_id}
        fields = {"bos_token_id": config.bos_token_id, **ids, "mask_token_id": tokenizer.mask_id}
        write_json(folder / GENERATION_CONFIG, fields)


def code_files(folder: Path) -> list[Path]:
    """List the Python files that a folder's `auto_map`s name, and those that they import from beside them.

    A file that is named and absent is warned of: without it transformers does not find the model.
    """
    found: dict[str, Path] = {}
    waiting = list(auto_map_modules(folder))
    while waiting:
        name = waiting.pop()
        path = folder / f"{name}.py"
        if not path.is_file():
            logger.warning("%s lacks %s.py, which its auto_map needs: transformers will not find it", folder, name)
        elif name not in found:
            found[name] = path
            neighbours = NEIGHBOUR.findall(path.read_text(encoding="utf-8", errors="replace"))
            waiting += [one or other for one, other in neighbours]
    return sorted(found.values())


def auto_map_modules(folder: Path) -> Iterator[str]:
    """Yield the names of the modules that config.json and tokenizer_config.json name."""
    for file in ("config.json", TOKENIZER_CONFIG):
        auto_map: Any = huggingface.read_json(folder, file).get("auto_map") if (folder / file).is_file() else None
        for value in auto_map.values() if isinstance(auto_map, dict) else ():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and (found := LOCAL_CLASS.fullmatch(name)):
                    yield found[1]
