"""Errors that reach the user as one line, and the exit code that goes with each."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_RUN_FAILED = 1
EXIT_USAGE = 2
EXIT_THRESHOLD = 3  # `--fail-on` and `--fail-on-regression` hold


class LoaderdoctorError(Exception):
    """Root of every error of ours. The message says what happened, to what, and what to do next."""

    exit_code = EXIT_RUN_FAILED


class UsageError(LoaderdoctorError):
    """The command line or an input file can't be used as given."""

    exit_code = EXIT_USAGE


class TraceError(UsageError):
    """A file is not a readable torch.profiler trace."""


class RunError(LoaderdoctorError):
    """A run of ours failed: the measuring process died, hung, or gave no evidence."""


class TrialRefused(LoaderdoctorError):  # noqa: N818  # a result, not a failure
    """Running this trial would lose data, break the run or the machine. The reason is a row's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def whole_output() -> Iterator[None]:
    """Raises RunError where stdout takes no more: a full disk. A closed pipe is click's to end."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE or not _stdout_fails():
            raise
        raise RunError(f"stdout: can't be written ({error.strerror or error}).") from error


def _stdout_fails() -> bool:
    """Whether it is stdout that can't be written: it takes no line end either.

    What it holds is dropped then: the interpreter would try it again at its end, with a traceback.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return True
    return False
