"""`Trainer(callbacks=[TransformersMonitor()])`: records `train` of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers import TrainerCallback

from loaderdoctor.callbacks.recording import Recording

if TYPE_CHECKING:
    from loaderdoctor.report.model import Report


class TransformersMonitor(TrainerCallback):  # type: ignore[misc]  # untyped where not installed
    """Records each `trainer.train()`, as `loaderdoctor.monitor` does a block; options are the same.

    Of several ranks only the first is recorded; `loaderdoctor run` records all of them. A second
    `train` has the folder OUTPUT-2, and so on. What can't be recorded trains on, which is said.
    """

    def __init__(
        self,
        *,
        output: str | Path | None = None,
        metrics_file: str | Path | None = None,
        tune: bool | Literal["exact"] = False,
    ) -> None:
        self._recording = Recording(output=output, metrics_file=metrics_file, tune=tune)

    def report(self, *, show: bool = True) -> Report | None:
        """The report of the last `train`; prints it unless `show` is False.

        None, with a line that says why, where it was not recorded, as on ranks above 0. Raises
        RunError before the first.
        """
        return self._recording.report(show=show)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first step comes next; a training that raised before has told nobody of its end."""
        self._recording.begin(first_rank=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last step is made."""
        self._recording.end()
