"""What a batch hashes to: equal for batches that are the same bit for bit."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, nodes

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None))


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
