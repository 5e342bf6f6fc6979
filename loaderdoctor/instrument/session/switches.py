"""What a window changes of the loop's own work, and changes back: its copies, and how it computes.

`Switches` runs on the training thread, between two steps. `TransferObserver` records the loop's own
host-to-device calls of normal steps, `ForceTransfer` makes them with another `non_blocking`
(trials); `free_copies` answers them with ready device tensors. One of them at a time; see h2d for
what they see.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import UnsupportedBatch, tensors
from loaderdoctor.instrument.batches.h2d import H2DCall, H2DHook
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.sources import SourceRefusedError
from loaderdoctor.instrument.system import Site, user_site
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.instrument.wire.records import TransferRecord
from loaderdoctor.settings import Settings

if TYPE_CHECKING:
    from loaderdoctor.instrument.batches.free_copies import FreeCopies
    from loaderdoctor.instrument.trial.compute import Compute

# A call belongs to the step if it is made in at least half the steps: fewer is logging, a
# checkpoint, or the model on its way to the device before the loop.
MIN_SHARE_OF_STEPS = 0.5
MAX_STEPS = 64
# Batches whose tensors are recognised: a prefetcher of the loop's own runs a few ahead.
MAX_BATCHES = 8


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


class TransferObserver(H2DHook):
    """Records the host-to-device calls that recur each step. Light, but not for plain windows."""

    def __init__(self, device_type: str | None = None) -> None:
        super().__init__(device_type)
        self._training_thread: threading.Thread | None = None
        self._steps: deque[list[tuple[Site, TransferRecord]]] = deque(maxlen=MAX_STEPS)
        # of each batch: address of a tensor -> where in the batch, shape and dtype
        self._batches: deque[dict[int, tuple[str, torch.Size, torch.dtype]]] = deque(
            maxlen=MAX_BATCHES
        )

    def begin_step(self) -> None:
        """A step begins; calls before the first step are not recorded.

        The thread that calls first is the training thread. A thread that fetches batches for it
        calls too, and begins no step.
        """
        super().begin_step()
        thread = threading.current_thread()
        if self._training_thread is None:
            self._training_thread = thread
        if thread is self._training_thread:
            self._steps.append([])

    def note_batch(self, batch: Any) -> None:
        """Show a batch that the loop gets, so that a record can name the tensor it copied."""
        try:
            found = tensors(batch)
        except UnsupportedBatch:
            return
        addresses = ((path, tensor, _address(tensor)) for path, tensor in found)
        self._batches.append(
            {at: (path, tensor.shape, tensor.dtype) for path, tensor, at in addresses if at}
        )

    def on_call(self, call: H2DCall) -> Tensor:
        result = call.make()
        if self._steps:
            site = user_site()
            self._steps[-1].append((site, self._record(call, site)))
        return result

    def records(self) -> tuple[TransferRecord, ...]:
        """One for each call of a normal step, in the order made there.

        From the last step that makes the usual number of calls; the step under way is left out
        where there are others.
        """
        steps = list(self._steps)
        if len(steps) > 1:
            steps = steps[:-1]
        seen_in = Counter(site for step in steps for site in {site for site, _ in step})
        recurring = {
            site for site, count in seen_in.items() if count >= MIN_SHARE_OF_STEPS * len(steps)
        }
        normal = [[record for site, record in step if site in recurring] for step in steps]
        lengths = Counter(len(step) for step in normal if step)
        if not lengths:
            return ()
        usual = lengths.most_common(1)[0][0]
        return tuple(next(step for step in reversed(normal) if len(step) == usual))

    def _record(self, call: H2DCall, site: Site) -> TransferRecord:
        source = call.source
        plain = source.layout == torch.strided
        return TransferRecord(
            call=call.name,
            site=site.label,
            code=site.code,
            shape=tuple(source.shape),
            dtype=str(source.dtype).removeprefix("torch."),
            n_bytes=source.numel() * source.element_size(),
            pinned=plain and torch.cuda.is_available() and source.is_pinned(),
            non_blocking=call.non_blocking,
            path=self._path(source),
        )

    def _path(self, source: Tensor) -> str | None:
        """Which tensor of a batch that is; None for one that the loop made itself."""
        address = _address(source)
        for batch in reversed(self._batches if address else ()):
            path, shape, dtype = batch.get(address, (None, None, None))
            # A freed batch's address may come back for a tensor of the loop's own.
            if shape == source.shape and dtype == source.dtype:
                return path
        return None


def _address(tensor: Tensor) -> int:
    """Of its first value in host memory; 0 where it has none there."""
    try:
        if tensor.is_cpu and tensor.layout == torch.strided and tensor.numel():
            return tensor.data_ptr()
    except RuntimeError:  # a class of the user's own, which wraps others
        pass
    return 0


class ForceTransfer(H2DHook):
    """Makes the loop's own host-to-device calls with this `non_blocking` instead of theirs."""

    def __init__(self, non_blocking: bool, device_type: str | None = None) -> None:
        super().__init__(device_type)
        self.non_blocking = non_blocking

    def on_call(self, call: H2DCall) -> Tensor:
        if call.non_blocking is self.non_blocking:
            return call.make()
        return call.make_with(non_blocking=self.non_blocking)
