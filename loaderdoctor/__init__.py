"""loaderdoctor: says where each millisecond of a training step goes, and proves it.

`watch` and `watching` measure a loop of this process, `monitor` records it to its end; the command
does so with whole scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderdoctor.api import monitor, watch, watching

__version__ = "0.1.0"

__all__ = ["__version__", "monitor", "watch", "watching"]


def __getattr__(name: str) -> Any:
    """The API on first use: importing the package alone loads nothing else."""
    if name in ("monitor", "watch", "watching"):
        import importlib

        return getattr(importlib.import_module("loaderdoctor.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
