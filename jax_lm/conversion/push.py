"""Upload of checkpoints to the hub: files and model card in one commit.

Only weights, configuration, tokenizer, licence, model card and the code named by `auto_map` are
uploaded; pickles and any other files in the folder are not. The token comes from the environment.
Downloads are in `huggingface.resolve`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from jax_lm.checkpoints import checksums, huggingface, loading, peft
from jax_lm.checkpoints.description import code_files, matching_files
from jax_lm.checkpoints.huggingface import DESCRIPTION_FILES, LICENCE_FILES
from jax_lm.checkpoints.stored import CheckpointError, first_line
from jax_lm.conversion.verify import verify
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import parameter_count

CARD = "README.md"


@dataclass(frozen=True)
class Upload:
    """The files of an upload.

    Attributes:
        files: files of the folder that are uploaded.
        card: text of a generated model card; None if the folder has its own.
        left_out: files of the folder that are not uploaded.
    """

    files: tuple[Path, ...]
    card: str | None
    left_out: tuple[Path, ...]


def prepare_upload(folder: Path, repo: str, license_name: str | None = None) -> Upload:
    """Check a checkpoint in the Hugging Face layout and list the files to upload.

    Args:
        folder: folder of the checkpoint or adapter.
        repo: repository on the hub, owner/name.
        license_name: licence for the model card; None leaves it out.

    Raises:
        CheckpointError: there is no checkpoint, or a check of `verify` fails.
        ValueError: `repo` is not of the form owner/name.
    """
    hub_id = huggingface.HUB_ID.fullmatch(repo)
    if not hub_id or hub_id["revision"]:
        raise ValueError(f"repo={repo!r}: must be like owner/name")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    is_adapter = peft.is_adapter(folder)
    files = sorted(adapter_files(folder) if is_adapter else model_files(folder))
    write_card = adapter_card if is_adapter else model_card
    card = None
    if folder / CARD not in files:
        card = write_card(folder, repo, f"license: {license_name}\n" if license_name else "")
    left_out = [path for path in sorted(folder.iterdir()) if path.is_file() and path not in files]
    return Upload(tuple(files), card, tuple(left_out))


def adapter_files(folder: Path) -> set[Path]:
    """Return the files of an adapter in PEFT's layout that are uploaded.

    Raises:
        CheckpointError: the adapter cannot be read.
    """
    peft.read_adapter(folder)
    return matching_files(folder, (*peft.FILES, *LICENCE_FILES, CARD))


def model_files(folder: Path) -> set[Path]:
    """Return the files of a model that are uploaded.

    Raises:
        CheckpointError: there is no checkpoint, or a check of `verify` fails.
    """
    if (folder / loading.ORBAX_FOLDER).exists():
        raise CheckpointError(
            f"{folder} is in the Orbax layout, which the hub's libraries do not read: "
            f"`diffucoder convert {folder} OTHER` makes a folder in the Hugging Face layout"
        )
    # Only the weights that the index names: others were left by another layout or run.
    weights = set(huggingface.tensor_files(folder).values())
    # Nothing is uploaded that would not load.
    for check in verify(folder):
        if not check.passed:
            raise CheckpointError(f"{folder} is not uploaded: {check.name}: {check.found}")
    other_files = matching_files(folder, (*DESCRIPTION_FILES, *LICENCE_FILES, CARD))
    return other_files | weights | set(code_files(folder))


def adapter_card(folder: Path, repo: str, licence: str) -> str:
    """Return a model card of an adapter, and a usage example."""
    adapter = peft.read_adapter(folder)
    name = adapter.base.name or ""
    is_hub_id = huggingface.HUB_ID.fullmatch(name)
    base = f"base_model: {name}\n" if is_hub_id else ""
    # A and B of each layer.
    layers = len(adapter.tensors) // 2
    return f"""---
library_name: peft
tags: [lora, masked-diffusion, diffucoder, code]
{base}{licence}---

# {repo.split("/")[1]}

A LoRA adapter of rank {adapter.config.rank}, in {layers} layers of {name or "a model to be named"}.

    diffucoder generate --model {name if is_hub_id else "BASE"} --adapter {repo} "def fibonacci(n):"
"""


def model_card(folder: Path, repo: str, licence: str) -> str:
    """Return a model card with the facts that the files state, and a usage example."""
    config = DreamForCausalLM.read_config(folder)
    fields = huggingface.read_json(folder, "config.json")
    dtype = fields.get("torch_dtype") or fields.get("dtype") or "of unstated precision"
    precision = "int8 kernels" if DreamForCausalLM.is_int8(folder) else dtype
    files = sorted(set(huggingface.tensor_files(folder).values()))
    checksum_rows = "\n".join(
        f"| `{path.name}` | {path.stat().st_size:,} | `{checksums.sha256(path)}` |"
        for path in files
    )
    # the card: a header that the hub reads, and text for people
    return f"""---
library_name: jax-diffucoder
pipeline_tag: text-generation
tags: [masked-diffusion, diffucoder, code, jax]
{licence}---

# {repo.split("/")[1]}

A language model for code, of the family {config.family.name}: {parameter_count(config):,} parameters,
{config.num_hidden_layers} layers of width {config.hidden_size:,},
a vocabulary of {config.vocab_size:,} tokens, {precision}.

With jax-diffucoder, installed from a checkout of its repository:

    diffucoder generate --model {repo} "def fibonacci(n):"

Please add here what the model was trained on, what it is intended for, and how it was evaluated.

| weights | bytes | SHA-256 |
|---|---|---|
{checksum_rows}
"""


def push(
    upload: Upload, repo: str, *, message: str, is_public: bool, revision: str | None = None
) -> str:
    """Upload files to the hub in one commit, hence atomically.

    Args:
        upload: the files, from `prepare_upload`.
        repo: repository on the hub, owner/name.
        message: commit message.
        is_public: whether to create the repository as a public one; an existing repository keeps
            its visibility.
        revision: branch; None is the main branch.

    Returns:
        The URL of the commit.

    Raises:
        ValueError: the environment has no token, or the hub rejects the upload.
    """
    # A token that the hub's client has stored in a file is not used; see `huggingface.resolve`.
    token = os.environ.get("HF_TOKEN")
    if not token:
        raise ValueError("HF_TOKEN is not set: the hub requires a token with write access")
    operations = [CommitOperationAdd(path.name, path) for path in upload.files]
    if upload.card is not None:
        operations.append(CommitOperationAdd(CARD, upload.card.encode()))
    api = HfApi(token=token)
    try:
        # Repository and branch first: a commit needs both.
        api.create_repo(repo, private=not is_public, exist_ok=True)
        if revision:
            api.create_branch(repo, branch=revision, exist_ok=True)
        return api.create_commit(
            repo, operations, commit_message=message, revision=revision
        ).commit_url
    except Exception as error:  # the hub's client also raises exceptions of its HTTP library
        raise ValueError(
            f"repo={repo!r}: the hub rejected the upload ({first_line(error)})"
        ) from error
