"""`diffucoder push`: a checkpoint to the hub."""

from jax_lm.arguments.checkpoints import Push
from jax_lm.conversion import push as hub


def run(arguments: Push) -> int:
    upload = hub.prepare_upload(arguments.folder, arguments.repo, arguments.license)
    sizes = {path: path.stat().st_size for path in upload.files}
    for path, size in sizes.items():
        print(f"{size:15,}  {path.name}")
    if upload.card is not None:
        print(f"{len(upload.card.encode()):15,}  {hub.CARD}, made for it:\n\n{upload.card}")
    if upload.left_out:
        print(f"left out: {', '.join(path.name for path in upload.left_out)}")
    if not arguments.confirm:
        print(f"nothing was sent to {arguments.repo}: --confirm does it")
        return 0
    address = hub.push(
        upload, arguments.repo, message=arguments.message, is_public=arguments.public, revision=arguments.revision
    )
    print(f"sent {sum(sizes.values()) / 2**20:,.1f} MiB: {address}")
    return 0
