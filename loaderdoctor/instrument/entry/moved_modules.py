"""Modules of the user's folder are imported from its copy, however they are found.

An editable install, a `.pth` file or PYTHONPATH name the folder itself: what is imported through
them would be the original in a copy that was changed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_OURS = "loaderdoctor"  # imported before, and no part of what is proven


class CopyFirst(MetaPathFinder):
    """Asks the other finders; what they find in `root` is taken from where it lies in `copy`."""

    def __init__(self, root: str, copy: str) -> None:
        self._root, self._copy = os.path.realpath(root), os.path.realpath(copy)

    def install(self) -> None:
        """From now on. Entries of sys.path lead into the copy too: spawned workers inherit them."""
        sys.path[:] = [self.here(entry) or entry for entry in sys.path]
        sys.meta_path.insert(0, self)

    def here(self, path: str) -> str | None:
        """Where a file or folder of the original lies in the copy; None: not there, or no such."""
        full = os.path.realpath(path)
        if full != self._root and not full.startswith(self._root + os.sep):
            return None
        if full == self._copy or full.startswith(self._copy + os.sep):
            return None  # a copy within the original
        moved = self._copy + full[len(self._root) :]
        return moved if os.path.lexists(moved) else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import system. Those before this one ask it themselves."""
        if fullname.partition(".")[0] == _OURS:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return self._moved(spec)
        return None

    def _moved(self, spec: ModuleSpec) -> ModuleSpec:
        folders = spec.submodule_search_locations
        if spec.origin is None or not spec.has_location:
            if folders is not None:  # a namespace package
                spec.submodule_search_locations = [self.here(x) or x for x in folders]
            return spec
        moved = self.here(spec.origin)
        if moved is None:
            return spec
        inside = None if folders is None else [self.here(x) or x for x in folders]
        found = importlib.util.spec_from_file_location(
            spec.name, moved, submodule_search_locations=inside
        )
        if found is None:
            return spec
        if "." not in spec.name:  # spawned workers look along sys.path
            at = Path(moved).parent.parent if inside is not None else Path(moved).parent
            if str(at) not in sys.path:
                sys.path.insert(1, str(at))
        return found

    def missed(self) -> tuple[str, ...]:
        """Modules that came from the original although the copy has a file of its own."""
        found = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            ours = name.partition(".")[0] == _OURS
            if ours or not isinstance(file, str):
                continue
            moved = self.here(file)  # in a shared folder, a link, it is the original itself
            if moved is not None and os.path.realpath(moved) != os.path.realpath(file):
                found.append(name)
        return tuple(sorted(found))
