"""What DLIO asks of its tracer where tracing is off: nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

DFTRACER_ENABLE = False
dftracer = None


class dft_fn:  # noqa: N801  (the tracer's own name)
    """A decorator, a context and an iterator that add nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    log_init = log_static = log

    def iter(self, items: Iterable[Any], *args: Any, **kwargs: Any) -> Iterable[Any]:
        return items

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass
