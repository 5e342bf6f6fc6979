"""`Trainer(callbacks=[LightningMonitor()])`: records `fit`, for lightning and pytorch_lightning."""

from __future__ import annotations

import sys
from typing import Any

from loaderdoctor.callbacks import Recorder

# Both may be installed, and are two packages of the same code: the one that is in use already.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback


class LightningMonitor(Recorder, Callback):  # type: ignore[misc]  # untyped
    """Records each `trainer.fit`, as `loaderdoctor.monitor` does a block; options are the same.

    Of several ranks only the first is recorded; `loaderdoctor run` records all of them. A second
    `fit` has the folder OUTPUT-2, and so on. What can't be recorded trains on, which is said.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning is about to fit, validate, test or predict."""
        if stage == "fit":
            self.begin_recording(first_rank=trainer.global_rank == 0)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.end_recording()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """It was ended by an exception; `teardown` is not called then."""
        self.end_recording(failed=True)
