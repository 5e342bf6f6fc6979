"""Which line of the user's own code made a call."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent)
# Code that is nobody's own: the standard library and everything installed.
_INSTALLED = tuple(
    dict.fromkeys(
        os.path.realpath(path)
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    )
)


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line of code; equal for every call made there."""

    file: str
    line: int

    @property
    def site(self) -> str:
        """`train.py:57`: the path below the script's folder, else the file's name."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        folder = os.path.realpath(Path(main).parent) if main else None
        path = os.path.realpath(self.file)
        if folder is not None and path.startswith(folder + os.sep):
            path = path[len(folder) + 1 :]
        else:
            path = Path(path).name
        return f"{path}:{self.line}"

    @property
    def code(self) -> str | None:
        """The source line, stripped; None where the source isn't there."""
        return linecache.getline(self.file, self.line).strip() or None


def user_call_site(frame: FrameType | None) -> CallSite | None:
    """The innermost line outside this package, the standard library and installed packages.

    Where all code is installed (a trainer run with `-m`), the innermost line outside this package
    and torch; None where there is none.
    """
    installed: CallSite | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, "<")):
            own = _is_own(file)
            if own:
                return CallSite(file, frame.f_lineno)
            if installed is None and f"{os.sep}torch{os.sep}" not in file:
                installed = CallSite(file, frame.f_lineno)
        frame = frame.f_back
    return installed


_known: dict[str, bool] = {}


def _is_own(file: str) -> bool:
    if file not in _known:
        path = os.path.realpath(file)
        inside = "site-packages" in path or "dist-packages" in path
        _known[file] = not inside and not path.startswith(_INSTALLED)
    return _known[file]
