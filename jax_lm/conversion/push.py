"""Send checkpoints to the hub: files, model card, one commit.

Only weights, configuration, tokenizer, licence and card are sent, and the code that `auto_map` names: no pickles,
nothing else that lies beside them. The token comes from the environment. Reading from the hub is `huggingface.resolve`.
"""

import os
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from jax_lm.checkpoints import checksums, huggingface, peft
from jax_lm.checkpoints.description import code_files
from jax_lm.checkpoints.huggingface import DESCRIPTION_FILES, LICENCE_FILES, WEIGHT_FILES
from jax_lm.checkpoints.stored import CheckpointError, first_line
from jax_lm.conversion.verify import verify
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import parameter_count

CARD = "README.md"
SENT = [*DESCRIPTION_FILES, *WEIGHT_FILES, *LICENCE_FILES, CARD]


@dataclass(frozen=True)
class Upload:
    """The files of a folder that go to the hub, those that do not, and a card (None if the folder has its own)."""

    files: tuple[Path, ...]
    card: str | None
    left_out: tuple[Path, ...]


def prepare_upload(folder: Path, repo: str, license_name: str | None = None) -> Upload:
    """Check a checkpoint in the Hugging Face layout and list what would be sent.

    CheckpointError if there is none, or a check of `verify` fails; ValueError if `repo` is no owner/name.
    """
    found = huggingface.HUB_ID.fullmatch(repo)
    if not found or found["revision"]:
        raise ValueError(f"repo={repo!r}: must be like owner/name")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder")
    if (folder / peft.CONFIG).is_file() and not (folder / "config.json").is_file():
        return adapter_upload(folder, repo, license_name)
    files = huggingface.tensor_files(folder)
    for check in verify(folder):
        if not check.passed:
            raise CheckpointError(f"{folder} is not sent: {check.name}: {check.found}")
    present = sorted(path for path in folder.iterdir() if path.is_file())
    code = code_files(folder)
    sent = [path for path in present if path in code or any(fnmatch(path.name, pattern) for pattern in SENT)]
    # Weights of another layout or run would be loaded by nobody.
    sent = [path for path in sent if path.suffix != ".safetensors" or path in files.values()]
    card = None if folder / CARD in sent else model_card(folder, repo, license_name)
    return Upload(tuple(sent), card, tuple(path for path in present if path not in sent))


def adapter_upload(folder: Path, repo: str, license_name: str | None) -> Upload:
    """List what would be sent of an adapter in PEFT's layout; CheckpointError if it cannot be read."""
    adapter = peft.read_adapter(folder)
    present = sorted(path for path in folder.iterdir() if path.is_file())
    sent = [path for path in present if any(fnmatch(path.name, each) for each in (*peft.FILES, *LICENCE_FILES, CARD))]
    name, is_hub_id = adapter.base.name or "", huggingface.HUB_ID.fullmatch(adapter.base.name or "")
    header = "library_name: peft\ntags: [lora, masked-diffusion, diffucoder, code]\n"
    header += f"base_model: {name}\n" if is_hub_id else ""
    header += f"license: {license_name}\n" if license_name else ""
    card = f"""---
{header}---

# {repo.split("/")[1]}

A LoRA adapter of rank {adapter.config.rank}, in {len(adapter.tensors) // 2} layers of {name or "a model to be named"}.

    diffucoder generate --model {name if is_hub_id else "BASE"} --adapter {repo} "def fibonacci(n):"
"""
    return Upload(tuple(sent), None if folder / CARD in sent else card, tuple(p for p in present if p not in sent))


def model_card(folder: Path, repo: str, license_name: str | None) -> str:
    """Write a card that says what the files themselves say, and how to use them."""
    config = DreamForCausalLM.read_config(folder)
    dtype = huggingface.read_json(folder, "config.json").get("torch_dtype")
    precision = "int8 kernels" if DreamForCausalLM.is_int8(folder) else dtype
    files = sorted(set(huggingface.tensor_files(folder).values()))
    sums = "\n".join(f"| `{path.name}` | {path.stat().st_size:,} | `{checksums.sha256(path)}` |" for path in files)
    licence = f"license: {license_name}\n" if license_name else ""
    return f"""---
library_name: jax-diffucoder
pipeline_tag: text-generation
tags: [masked-diffusion, diffucoder, code, jax]
{licence}---

# {repo.split("/")[1]}

A masked-diffusion language model of the Dream architecture: {parameter_count(config):,} parameters,
{config.num_hidden_layers} layers of width {config.hidden_size:,}, a vocabulary of {config.vocab_size:,} tokens,
{precision}.

    pip install jax-diffucoder
    diffucoder generate --model {repo} "def fibonacci(n):"

What it was trained on, what it is for and how good it is has to be written here by who trained it.

| weights | bytes | SHA-256 |
|---|---|---|
{sums}
"""


def push(upload: Upload, repo: str, *, message: str, is_public: bool, revision: str | None = None) -> str:
    """Send an upload in one commit, so that it appears whole or not at all; returns the commit's address.

    `is_public` is for a repository that does not exist yet; one that does stays as it is. `revision` is a branch, the
    main one if not given. ValueError if there is no token in the environment, or the hub refuses.
    """
    token = os.environ.get("HF_TOKEN")
    if not token:
        raise ValueError("HF_TOKEN is not set: the hub wants a token that may write")
    operations = [CommitOperationAdd(path.name, path) for path in upload.files]
    if upload.card is not None:
        operations.append(CommitOperationAdd(CARD, upload.card.encode()))
    api = HfApi(token=token)
    try:
        api.create_repo(repo, private=not is_public, exist_ok=True)
        if revision:
            api.create_branch(repo, branch=revision, exist_ok=True)
        return api.create_commit(repo, operations, commit_message=message, revision=revision).commit_url
    except Exception as error:  # the hub's client lets exceptions of its HTTP library through
        raise ValueError(f"repo={repo!r}: the hub did not take it ({first_line(error)})") from error
