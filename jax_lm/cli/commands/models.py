"""`diffucoder models`: lists and deletes models in the hub's cache."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from huggingface_hub.utils import CachedRepoInfo
from rich.console import Console
from rich.table import Table

from jax_lm.checkpoints.huggingface import HUB_ID
from jax_lm.cli.arguments.models import Models
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import parameter_count


@dataclass(frozen=True)
class CachedModel:
    """A revision of a repository in the cache.

    Attributes:
        model: hub id, with the revision unless it is the main branch.
        what: type, size and state, or why this package cannot use it.
        bytes: size on disk; revisions of a repository share files.
        commit: hash of the revision.
        folder: its folder.
    """

    model: str
    what: str
    bytes: int
    commit: str
    folder: str


def run_models(arguments: Models) -> int:
    """List the models, or delete one."""
    repositories = cached_repositories()
    if arguments.delete is not None:
        return delete(repositories, arguments.delete, confirmed=arguments.yes)
    cached = [model for repository in repositories for model in models_of(repository)]
    if arguments.json:
        print(json.dumps([asdict(model) for model in cached], indent=1))
        return 0
    if not cached:
        print("no model in the hub's cache: --model OWNER/NAME downloads one")
        return 0
    table = Table("model", "what it is", "on disk", box=None, padding=(0, 2, 0, 0))
    for model in cached:
        table.add_row(model.model, model.what, gigabytes(model.bytes))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{gigabytes(sum(repository.size_on_disk for repository in repositories))} in all", markup=False)
    return 0


def cached_repositories() -> list[CachedRepoInfo]:
    """Return the model repositories in the cache, sorted by name."""
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted((each for each in repositories if each.repo_type == "model"), key=lambda each: each.repo_id)


def models_of(repository: CachedRepoInfo) -> list[CachedModel]:
    """Return the revisions of a repository, the main branch first."""
    models = []
    for revision in sorted(repository.revisions, key=lambda each: ("main" not in each.refs, each.commit_hash)):
        name = min(revision.refs, key=lambda ref: ref != "main", default=revision.commit_hash[:12])
        model = repository.repo_id if name == "main" else f"{repository.repo_id}@{name}"
        what, folder = describe_folder(revision.snapshot_path), str(revision.snapshot_path)
        models.append(CachedModel(model, what, revision.size_on_disk, revision.commit_hash, folder))
    return models


def describe_folder(folder: Path) -> str:
    """Describe a checkpoint, or why it cannot be used."""
    try:
        config = DreamForCausalLM.read_config(folder)
    except ValueError as error:
        return f"not usable here: {error}"
    kind = "masked diffusion" if config.mask_token_id is not None else "autoregressive; diffucoder adapt takes it"
    weights = "" if any(folder.glob("*.safetensors")) else ", without its weights"
    return f"{config.model_type}, {parameter_count(config) / 1e9:,.1f}B parameters, {kind}{weights}"


def delete(repositories: list[CachedRepoInfo], model: str, *, confirmed: bool) -> int:
    """Delete revisions of a model, or print what that would free; ValueError if it is not cached."""
    asked = HUB_ID.fullmatch(model)
    chosen = [
        revision.commit_hash
        for repository in repositories
        for revision in repository.revisions
        if asked
        and asked["repo"] == repository.repo_id
        and (
            asked["revision"] is None
            or asked["revision"] in revision.refs
            or revision.commit_hash.startswith(asked["revision"])
        )
    ]
    if not chosen:
        names = ", ".join(repository.repo_id for repository in repositories) or "nothing"
        raise ValueError(f"delete={model!r}: not in the hub's cache, which holds {names}")
    strategy = scan_cache_dir().delete_revisions(*chosen)
    if not confirmed:
        print(f"would free {gigabytes(strategy.expected_freed_size)}: --yes deletes {model}")
        return 0
    strategy.execute()
    print(f"deleted {model}: {gigabytes(strategy.expected_freed_size)} freed")
    return 0


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"
