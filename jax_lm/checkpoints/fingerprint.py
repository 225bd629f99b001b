"""A digest of the weights of a checkpoint, independent of format, sharding and float dtype.

An adapter stores the digest of its base model, to recognize it. The digest covers every number, not
a sample: a short training run may change few of them.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_lm.checkpoints.loading import CheckpointTensors
from jax_lm.checkpoints.stored import StoredTensor

# Tensors hashed in parallel, and held in memory at once. Hashing releases the GIL.
THREADS = 4


def weights_fingerprint(checkpoint: CheckpointTensors, names: Collection[str]) -> str:
    """Compute the digest of the named tensors, with floats rounded to bfloat16: 16 hex digits.

    This takes about as long as reading the checkpoint once.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        tensors = [checkpoint.stored[name] for name in sorted(names)]
        digests = pool.map(partial(tensor_digest, checkpoint), tensors)
    lines = (
        f"{tensor.name} {tensor.shape} {digest}\n"
        for tensor, digest in zip(tensors, digests, strict=True)
    )
    # 16 of 64 hex digits, 64 bits: enough to tell checkpoints apart, and short enough to print.
    return sha256("".join(lines).encode()).hexdigest()[:16]


def tensor_digest(checkpoint: CheckpointTensors, tensor: StoredTensor) -> str:
    """Compute the digest of one tensor."""
    values = checkpoint.fetch(tensor)
    if jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(ml_dtypes.bfloat16, copy=False)
    # Flat, because an array without axes cannot be viewed as bytes.
    return sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()
