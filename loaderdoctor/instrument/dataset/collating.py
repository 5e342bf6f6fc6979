"""Whose code makes batches out of samples: the user's own file, an installed package, or torch."""

from __future__ import annotations

import functools
import sys
from typing import Any

from loaderdoctor.instrument.system.call_sites import library_of

# Attributes by which a wrapper of a framework holds the function that does the work
# (transformers' RemoveColumnsCollator; others name it as DataLoader does).
_INNER = ("data_collator", "collate_fn", "__wrapped__")
_MAX_WRAPPERS = 8


def collate_library(collate_fn: Any) -> str | None:
    """The package whose code it is ("torch_geometric", "torch"); None: the user's own.

    A class of the user's that derives from a library's is the user's: what it overrides can change.
    """
    inner = _innermost(collate_fn)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is not None:
        return library_of(code.co_filename)
    kind = inner if isinstance(inner, type) else type(inner)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return library_of(file) if isinstance(file, str) else None


def _innermost(collate_fn: Any) -> Any:
    for _ in range(_MAX_WRAPPERS):
        if isinstance(collate_fn, functools.partial):
            collate_fn = collate_fn.func
            continue
        held = getattr(collate_fn, "__dict__", {})
        inner = next((held[name] for name in _INNER if callable(held.get(name))), None)
        if inner is None:
            break
        collate_fn = inner
    return collate_fn
