"""`diffucoder push`: a checkpoint to the hub."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, kw_only=True)
class Push:
    """Send weights, configuration, tokenizer and a model card to the hub; says what it would send unless told to.

    The token is read from HF_TOKEN, and nowhere else. Code and pickles beside the weights are never sent. A README.md
    in the folder is the card; without one, a card is made from the configuration.

    Examples:
        diffucoder push out/merged me/my-diffucoder                       (a dry run)
        HF_TOKEN=... diffucoder push out/merged me/my-diffucoder --confirm

    Attributes:
        folder: checkpoint in the Hugging Face layout.
        repo: where to, as owner/name.
        confirm: do it.
        public: whether everybody may see a repository that is made for it.
        license: for the card that is made, by the hub's name for it.
        message: of the commit.
        revision: branch to commit to; the main one if not given.
    """

    folder: tyro.conf.Positional[Path]
    repo: tyro.conf.Positional[str]
    confirm: bool = False
    public: bool = False
    license: str | None = None
    message: str = "Upload by diffucoder push"
    revision: str | None = None

    def run(self) -> int:
        from jax_lm.checkpoints import hub

        upload = hub.prepare(self.folder, self.repo, self.license)
        for path in upload.files:
            print(f"{path.stat().st_size:15,}  {path.name}")
        if upload.card is not None:
            print(f"{len(upload.card.encode()):15,}  {hub.CARD}, made for it:\n\n{upload.card}")
        if upload.left_out:
            print(f"left out: {', '.join(path.name for path in upload.left_out)}")
        if not self.confirm:
            print(f"nothing was sent to {self.repo}: --confirm does it")
            return 0
        address = hub.push(upload, self.repo, message=self.message, is_public=self.public, revision=self.revision)
        print(f"sent {upload.nbytes / 2**20:,.1f} MiB: {address}")
        return 0
