"""`Trainer(callbacks=[TransformersMonitor()])`: records `train` of transformers' Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from loaderdoctor.callbacks import Recorder


class TransformersMonitor(Recorder, TrainerCallback):  # type: ignore[misc]  # untyped
    """Records each `trainer.train()`, as `loaderdoctor.monitor` does a block; options are the same.

    Of several ranks only the first is recorded; `loaderdoctor run` records all of them. A second
    `train` has the folder OUTPUT-2, and so on. What can't be recorded trains on, which is said.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first step comes next; a training that raised before has told nobody of its end."""
        self.begin_recording(first_rank=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end_recording()
