"""What a window changes of the loop's own work, and changes back: its copies, and how it computes.

Runs on the training thread, between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.session.session import Session
from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings

if TYPE_CHECKING:
    from loaderdoctor.instrument.batches.free_copies import FreeCopies
    from loaderdoctor.instrument.session.transfer import ForceTransfer
    from loaderdoctor.instrument.trial.compute import Compute


class Switches:
    """Entered before a window's warm-up, left behind its last step."""

    def __init__(self, session: Session, position: Callable[[], int]) -> None:
        """`position`: which recorded batch the loop was given last (`FreeCopies`)."""
        self._session = session
        self._position = position
        self._free_copies: FreeCopies | None = None  # made once: it keeps what was copied
        # What answers or changes the loop's own copies in the window under way.
        self._copies: FreeCopies | ForceTransfer | None = None
        self._compute: Compute | None = None  # what switches models and optimizers
        self._computes_otherwise = False

    def enter_compute(self, settings: Settings | None) -> Generator[None, int, int | None]:
        """Switch the models and optimizers of the loop, after some steps to find them.

        Returns the steps in which compilers do their work; None where no switch is asked for.
        Raises SourceRefusedError.
        """
        if settings is None or not (settings.numerics or settings.gc):
            return None
        from loaderdoctor.instrument.trial import compute

        if not compute.asked(settings):
            return None
        if self._compute is None:
            self._compute = compute.Compute(self._session.note, self._session.roles.optimizer_ids)
        yield from self._compute.look(settings)
        self._computes_otherwise = True
        try:
            return self._compute.enter(settings)
        except TrialRefused as error:
            raise SourceRefusedError(str(error)) from error

    def enter_copies(self, request: WindowRequest) -> None:
        """Answer or change the loop's own transfers. Raises SourceRefusedError."""
        settings = request.settings
        non_blocking = settings.non_blocking if settings is not None else None
        if request.mode != "no_copy" and non_blocking is None:
            return
        from loaderdoctor.instrument.batches.free_copies import FreeCopies
        from loaderdoctor.instrument.session.transfer import ForceTransfer

        if non_blocking is not None:
            self._copies = ForceTransfer(non_blocking=non_blocking)
        elif self._session.device is None:
            raise SourceRefusedError("no accelerator: nothing is copied")
        else:
            if self._free_copies is None:
                self._free_copies = FreeCopies(self._session.device, position=self._position)
            self._copies = self._free_copies
        self._copies.install()
        self._copies.begin_step()
        self._session.window.begin_thread_step = self._copies.begin_step

    def begin_step(self) -> None:
        """A step begins."""
        if self._copies is not None:
            self._copies.begin_step()

    @property
    def watch_each_step(self) -> bool:
        """Whether `begin_step` does anything in this window."""
        return self._copies is not None

    @property
    def answering(self) -> FreeCopies | None:
        """What answers copies in this window, where they are answered."""
        return self._free_copies if self._copies is self._free_copies else None

    def failure(self) -> str | None:
        """Why the loop does not compute as was asked for; None where it does."""
        return self._compute.failure() if self._compute is not None else None

    def leave(self) -> bool:
        """Everything as before; whether the loop computed otherwise, and must get steady again."""
        was, self._computes_otherwise = self._computes_otherwise, False
        if self._compute is not None:
            self._compute.leave()
        if self._copies is not None:
            self._copies.remove()
            self._copies = None
        if self._free_copies is not None:
            self._free_copies.stop_counting()
            self._free_copies.copy_ahead(())
            self._free_copies.restore()
        return was
