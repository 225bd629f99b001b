"""List the models in the Hugging Face Hub's cache, and plan deletions."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from huggingface_hub.utils import CachedRepoInfo, DeleteCacheStrategy

from jax_lm.checkpoints.huggingface import HUB_ID
from jax_lm.config import Fields
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import parameter_count


def model_repositories() -> list[CachedRepoInfo]:
    """Return the model repositories in the cache, sorted by name."""
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(
        (each for each in repositories if each.repo_type == "model"), key=lambda each: each.repo_id
    )


def models_of(repository: CachedRepoInfo) -> Iterator[Fields]:
    """Yield a row for each revision of a repository, the main branch first.

    A row has these values:
        model: hub id, with @revision unless that is the main branch.
        what: type, size and state, or why this package cannot use it.
        bytes: size on disk; a file that revisions share counts for each of them.
        commit: hash of the revision.
        folder: folder of the revision.
    """
    for revision in sorted(
        repository.revisions, key=lambda each: ("main" not in each.refs, each.commit_hash)
    ):
        # "main" if it is one of the refs, else the first in alphabetical order; without refs, the
        # beginning of the hash
        name = min(
            revision.refs, key=lambda ref: (ref != "main", ref), default=revision.commit_hash[:12]
        )
        yield {
            "model": repository.repo_id if name == "main" else f"{repository.repo_id}@{name}",
            "what": describe_folder(revision.snapshot_path),
            "bytes": revision.size_on_disk,
            "commit": revision.commit_hash,
            "folder": str(revision.snapshot_path),
        }


def describe_folder(folder: Path) -> str:
    """Describe a checkpoint, or why it cannot be used.

    Shards are not counted, so an interrupted download is not noticed.
    """
    try:
        config = DreamForCausalLM.read_config(folder)
    except ValueError as error:
        return f"not usable here: {error}"
    # Qwen2.5 checkpoints have the architecture, but no mask token.
    kind = (
        "masked diffusion"
        if config.mask_token_id is not None
        else "autoregressive: can be decoded left to right; adapt it for any order"
    )
    weights = "" if any(folder.glob("*.safetensors")) else ", without safetensors weights"
    return f"{config.model_type}, {parameter_count(config) / 1e9:,.1f}B parameters, {kind}{weights}"


def plan_deletion(repositories: list[CachedRepoInfo], model: str) -> DeleteCacheStrategy:
    """Plan to delete the revisions of owner/name, or owner/name@revision.

    Raises:
        ValueError: the model is not in the cache, or the revision may mean several.
    """
    # "owner/name@v1" -> "owner/name", "v1"; "owner/name" -> "owner/name", None: all its revisions
    match = HUB_ID.fullmatch(model)
    repo, name = match.group("repo", "revision") if match else (None, None)
    # a revision is a branch or tag, or the beginning of a hash
    commits = [
        revision.commit_hash
        for repository in repositories
        for revision in repository.revisions
        if repository.repo_id == repo
        if not name or name in revision.refs or revision.commit_hash.startswith(name)
    ]
    if not commits:
        names = ", ".join(repository.repo_id for repository in repositories) or "nothing"
        raise ValueError(f"delete={model!r}: not in the hub's cache, which holds {names}")
    if name and len(commits) > 1:
        raise ValueError(f"delete={model!r}: may be {' or '.join(sorted(commits))}")
    # Only a scan of the cache can plan. Files that other revisions share are not deleted.
    return scan_cache_dir().delete_revisions(*commits)
