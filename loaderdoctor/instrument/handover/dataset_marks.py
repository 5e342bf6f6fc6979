"""What of a dataset's state can be seen to change: values, lengths, versions, which object it is.

Workers hold the dataset as it was when they were started. A loop that changes it meanwhile (a
curriculum, an epoch number) gets other samples from workers that are started at another time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

MAX_DEPTH = 3
MAX_MARKS = 400
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def marks(dataset: object) -> dict[str, Any]:
    """By path; equal dictionaries where no change can be seen. Content of arrays is not read."""
    found: dict[str, Any] = {}
    _mark(dataset, "", found, 0)
    return found


def _mark(value: object, path: str, found: dict[str, Any], depth: int) -> None:
    if len(found) >= MAX_MARKS:
        return
    if isinstance(value, _PLAIN):
        found[path] = value
    elif isinstance(value, Tensor):
        found[path] = (id(value), value._version)
    elif isinstance(value, np.ndarray):
        found[path] = (id(value), value.shape)
    elif isinstance(value, (list, tuple, dict, set, frozenset)):
        found[path] = (id(value), len(value))
        if depth < MAX_DEPTH and isinstance(value, (list, tuple)) and len(value) <= 16:
            for i, item in enumerate(value):
                _mark(item, f"{path}[{i}]", found, depth + 1)
    else:
        found[path] = id(value)
        held = getattr(value, "__dict__", None)
        if depth < MAX_DEPTH and isinstance(held, dict) and not isinstance(value, type):
            for name, item in list(held.items()):
                _mark(item, f"{path}.{name}", found, depth + 1)
