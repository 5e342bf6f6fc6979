"""What a batch hashes to: `digest` of all of it, `fingerprint` of how its tensors begin."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, nodes, tensors

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None))
# Of each tensor, its first bytes: hashing a megabyte takes about a millisecond.
MAX_BYTES = 2**20


def digest(batch: Any) -> bytes:
    """Of its structure, types, plain values and all bytes of tensors and arrays.

    Raises UnsupportedBatch where it holds what can't be compared (it is no data).
    """
    hashed = blake2b(digest_size=16)
    for path, node in nodes(batch):
        hashed.update(f"{path}\0{type(node).__module__}.{type(node).__qualname__}\0".encode())
        if isinstance(node, Tensor):
            _add_tensor(hashed, node)
        elif isinstance(node, np.ndarray) and node.dtype != np.dtype(object):
            hashed.update(f"{node.dtype}{node.shape}".encode())
            hashed.update(np.ascontiguousarray(node).reshape(-1).view(np.uint8).data)
        elif isinstance(node, _PLAIN):
            hashed.update(repr(node).encode())
        elif isinstance(node, (set, frozenset)):
            hashed.update(repr(sorted(map(repr, node))).encode())
        elif not isinstance(node, (list, tuple, dict)) and not getattr(node, "__dict__", None):
            _add_opaque(hashed, node)
    return hashed.digest()


def _add_tensor(hashed: blake2b, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedBatch(f"a {tensor.layout} tensor can't be compared bit by bit")
    hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.device.type}".encode())
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel():
        hashed.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def _add_opaque(hashed: blake2b, node: Any) -> None:
    """A value without attributes of its own: what pickling makes of it."""
    try:
        hashed.update(pickle.dumps(node))
    except Exception as error:  # any type may refuse in its own way
        raise UnsupportedBatch(f"a {type(node).__name__} can't be compared") from error


def fingerprint(batch: Any) -> bytes | None:
    """Of its tensors in host memory; None where it has none, or they can't be read as bytes."""
    try:
        found = tensors(batch)
        known = blake2b(digest_size=16)
        for path, tensor in found:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                return None
            flat = tensor.detach().reshape(-1)[: MAX_BYTES // max(1, tensor.element_size())]
            known.update(f"{path}{tuple(tensor.shape)}{tensor.dtype}".encode())
            known.update(flat.contiguous().view(torch.uint8).numpy().tobytes())
    except (UnsupportedBatch, RuntimeError, TypeError):  # quantised, nested, a subclass of its own
        return None
    return known.digest() if found else None
