"""A digest of the weights of a checkpoint, the same in every format, sharding and float dtype that holds them.

By it an adapter knows its base again. All numbers count: a short training moves few of them, and those by little.
"""

import hashlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import SingleDeviceSharding

from jax_lm.checkpoints.loading import CheckpointTensors
from jax_lm.checkpoints.stored import StoredTensor, TensorRequest, ViewedTensor

THREADS = 4
"""Tensors in memory at once: hashing lets go of the interpreter's lock."""


def weights_fingerprint(checkpoint: CheckpointTensors, names: Collection[str]) -> str:
    """Digest the named tensors, floats as they are in bfloat16; takes as long as reading the checkpoint once."""
    with ThreadPoolExecutor(THREADS) as pool:
        tensors = [checkpoint.stored[name] for name in sorted(names)]
        digests = pool.map(partial(tensor_digest, checkpoint), tensors)
    lines = (f"{tensor.name} {tensor.shape} {digest}\n" for tensor, digest in zip(tensors, digests, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def tensor_digest(checkpoint: CheckpointTensors, tensor: StoredTensor) -> str:
    """Digest one tensor."""
    if isinstance(tensor, ViewedTensor):
        values = tensor.view()
    else:
        sharding = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        values = np.asarray(checkpoint.read([TensorRequest(tensor, tensor.dtype, sharding)])[0])
    if jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(ml_dtypes.bfloat16, copy=False)
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()
