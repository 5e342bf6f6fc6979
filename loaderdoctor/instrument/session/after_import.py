"""Calls us right after a module was imported, whoever imports it and whenever.

Importing torch ourselves before the script would freeze what the script sets first (environment
variables read by OpenMP and CUDA at import), so hooks follow the script's own import instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AfterImport = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and wraps `exec_module` once."""

    def __init__(self, wanted: Mapping[str, AfterImport]) -> None:
        self._wanted = dict(wanted)

    def install(self) -> None:
        """Watch from now on; modules already imported are reported at once."""
        for name in [n for n in self._wanted if n in sys.modules]:
            self._wanted.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import system: the spec of a wanted module, with its loader wrapped."""
        if fullname not in self._wanted:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._wrap(fullname, spec)
                return spec
        return None

    def _wrap(self, fullname: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader belongs to this one module: give it back its own method first.
            del loader.exec_module
            original(module)
            callback = self._wanted.pop(fullname, None)
            if callback is not None:
                callback(module)
            if not self._wanted:
                self.remove()

        loader.exec_module = exec_module  # type: ignore[method-assign]
