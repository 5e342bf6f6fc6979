"""What a run that sets its loader has to say: one line for each change of what serves."""

from __future__ import annotations

import time

from loaderdoctor.alerts.alert import Alert
from loaderdoctor.instrument.wire.tuning import TuningRecord
from loaderdoctor.report.words.tuning import began, changed, left_alone


class Tuned:
    """Give it what each beat brings."""

    def __init__(self) -> None:
        self.record: TuningRecord | None = None

    def heard(self, record: TuningRecord, step: int) -> list[Alert]:
        """What is to be told of it."""
        before, self.record = self.record, record
        if record.not_tuned is not None:
            text = left_alone(record) if before is None else None
        elif before is None or before.chosen != record.chosen:
            text = began(record) if before is None and record.chosen is None else changed(record)
        else:
            text = None
        if text is None:
            return []
        return [Alert(kind="tuned", at_s=time.time(), step=step, text=text)]
