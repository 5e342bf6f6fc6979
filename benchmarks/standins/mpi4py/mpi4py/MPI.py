"""What DLIO asks of MPI, with one process: it has nobody to wait for."""  # noqa: N999

from __future__ import annotations

import os
from typing import Any, Self

MODE_WRONLY, MODE_CREATE, COMM_TYPE_SHARED = os.O_WRONLY, os.O_CREAT, 0
SUM = "sum"


class _Alone:
    rank, size = 0, 1

    def Split_type(self, kind: int) -> Self:  # noqa: N802  (MPI's names)
        return self

    def barrier(self) -> None:
        pass

    Barrier = barrier

    def Reduce(self, mine: Any, total: Any, op: str, root: int) -> None:  # noqa: N802
        total[...] = mine

    def allreduce(self, mine: Any) -> Any:
        return mine


COMM_WORLD = _Alone()


class File:
    """A file that one process writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def Open(cls, comm: _Alone, name: str, mode: int) -> Self:  # noqa: N802
        return cls(os.open(name, mode, 0o666))

    def Write_at_all(self, offset: int, values: Any) -> None:  # noqa: N802
        os.pwrite(self._descriptor, memoryview(values).cast("B"), offset)

    def Close(self) -> None:  # noqa: N802
        os.close(self._descriptor)


def Is_initialized() -> bool:  # noqa: N802
    return True


def Init() -> None:  # noqa: N802
    pass


def Finalize() -> None:  # noqa: N802
    pass
