"""What the bench runs, and how."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loaderdoctor.errors import UsageError

_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to run: a script or a module, with its own arguments."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    n_ranks: int = 1  # more: so many processes of it, as one job by torch's own launcher

    def check(self) -> None:
        """Raise UsageError where there is no such script."""
        if (self.script is None) == (self.module is None):
            raise UsageError("name either a script or, with -m, a module to run.")
        if self.script is not None and not Path(self.script).is_file():
            raise UsageError(f"{self.script}: no such file. Give the path of the training script.")

    @property
    def label(self) -> str:
        """`train.py`, or `-m pkg.train`."""
        return self.script if self.script is not None else f"-m {self.module}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How to run it."""

    # Where the script's stdout goes: "stderr" while ours holds the JSON, a file while a live
    # display would be torn by it. Its stderr always passes through.
    stdout: Literal["inherit", "stderr"] | Path = "inherit"
    record_workers: bool = True
    python: str = sys.executable

    @contextmanager
    def open_stdout(self) -> Iterator[int | None]:
        """File descriptor for the script's stdout; None: ours."""
        if isinstance(self.stdout, Path):
            with self.stdout.open("ab") as file:
                yield file.fileno()
        else:
            yield _STDERR if self.stdout == "stderr" else None
