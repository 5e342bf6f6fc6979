"""A trial that must not be run, and why."""

from __future__ import annotations

from loaderdoctor.errors import LoaderdoctorError


class Withheld(LoaderdoctorError):  # noqa: N818  # a result, not a failure
    """Running this trial would lose data, break the run or the machine. The reason is a row's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
