"""Which arguments of torch's worker loop are what: it is called by position, and changes."""

from __future__ import annotations

import inspect
import multiprocessing.queues
from collections.abc import Callable
from typing import Any


def find_argument(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Any:
    """The argument of that name in a call of `function`; None where it has no such parameter."""
    try:
        # A user's wrapper around the loop leads to torch's own signature by __wrapped__.
        return inspect.signature(function).bind(*args, **kwargs).arguments.get(name)
    except (TypeError, ValueError):
        return None


def find_queues(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any] | None:
    """Index queue and data queue of a worker loop's call: by name, else in order of type."""
    named = tuple(
        find_argument(function, args, kwargs, name) for name in ("index_queue", "data_queue")
    )
    if all(hasattr(q, "get") and hasattr(q, "put") for q in named):
        return named[0], named[1]
    typed = [
        value
        for value in (*args, *kwargs.values())
        if isinstance(value, multiprocessing.queues.Queue)
    ]
    return (typed[0], typed[1]) if len(typed) >= 2 else None
