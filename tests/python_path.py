"""Where processes that tests start find our package."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path(*more: Path) -> str:
    """PYTHONPATH with this tree, `more`, and what it holds already: there may be our packages."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), *map(str, more), *([inherited] if inherited else [])])
