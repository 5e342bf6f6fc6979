"""Recorded batches: handed out again and again, or made ahead of a window and handed out once.

A loop whose batches differ in shape must not get some of them again and again: what it compiles,
tunes or plans for a new shape would be spared it, and would look like the cost of the loader. So
the loader makes as many batches as the window has steps, while nothing is timed, and the loop gets
them in their order (`Ahead`). The loader's real pass goes on behind them.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from loaderdoctor.instrument.batches import Array, UnsupportedBatch, holders, rebuild, tensors
from loaderdoctor.instrument.batches.properties import Shapes, structure
from loaderdoctor.instrument.batches.tensor_pool import Budget, TensorPool, held_bytes
from loaderdoctor.instrument.system.machine import available_bytes

# So many batches of one shape before one is taken to stand for all.
MIN_SEEN = 3


class ReplayBuffer:
    """Batches recorded from the running loop, to be handed out again without any loader.

    One batch where shapes are constant, else up to `max_batches` consecutive ones (`keep_each`:
    these in any case), within a share of the memory that was free at the first. Clones of the same
    memory kind: pinned stays pinned, pageable pageable, device memory on its device; none of the
    user's own tensors is kept.
    `reason` says why nothing can be recorded; `ready` when the buffer may stand for the loader.
    """

    def __init__(
        self,
        max_batches: int = 8,
        max_share_of_free_memory: float = 0.10,
        *,
        keep_each: bool = False,
    ) -> None:
        self._max_batches = max_batches
        self._keep_each = keep_each
        self._share = max_share_of_free_memory
        self._budgets: dict[torch.device, Budget] = {}
        self._recorded: list[_Recorded] = []
        self._structures: set[tuple[Any, ...]] = set()
        self._n_seen = 0
        self.full = False  # nothing more is recorded
        self.short_of_memory = False  # for that reason
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._next = 0

    @property
    def ready(self) -> bool:
        """Whether enough was recorded; False for good where `reason` is set."""
        if self.reason is not None or not self._recorded or self._n_seen < MIN_SEEN:
            return False
        return self.full or not self.shapes_vary

    @property
    def n_batches(self) -> int:
        """Batches held: a whole cycle of hand-outs."""
        return len(self._recorded)

    @property
    def shapes_vary(self) -> bool:
        return len(self._structures) > 1

    def stands_for(self, shape: tuple[Any, ...]) -> bool:
        """Whether a batch of this structure was among those shown."""
        return shape in self._structures

    @property
    def position(self) -> int:
        """Which of the batches was handed out last, 0 … n_batches - 1."""
        return (self._next - 1) % max(1, len(self._recorded))

    @property
    def inline_ns(self) -> int:
        """Time spent inside `next_batch` on undoing changes, over the buffer's life.

        0 unless the loop changes its batches in place and memory is short; what it grew by
        within a window is none of the loop's own time.
        """
        return sum(pool.inline_ns for recorded in self._recorded for pool in recorded.pools)

    def record(self, batch: Any) -> None:
        """Show a batch that the loop is about to get; cloned only where the buffer needs it."""
        if self.reason is not None or self.full:
            return
        with self._lock:
            try:
                found = tensors(batch)
                self._n_seen += 1
                self._structures.add(structure(batch, found))
                if not self._recorded or self.shapes_vary or self._keep_each:
                    self._recorded.append(self._clone(batch, found))
            except UnsupportedBatch as error:
                self._refuse(str(error))
            except (TypeError, RuntimeError, NotImplementedError) as error:
                # torch refuses to copy a tensor, or the user's own type refuses to be rebuilt
                self._refuse(f"a batch of type {type(batch).__name__} can't be copied: {error}")
            except MemoryError:
                self.full = self.short_of_memory = True
                if not self._recorded:
                    size = sum(held_bytes(tensor) for _, tensor in found)
                    self._refuse(
                        f"two copies of a batch of {size} bytes are more than "
                        f"{self._share:.0%} of the free memory"
                    )
            self.full = self.full or len(self._recorded) >= self._max_batches

    def next_batch(self) -> Any:
        """The next recorded batch, endlessly. Raises StopIteration where none is held."""
        with self._lock:
            if not self._recorded:
                raise StopIteration
            recorded = self._recorded[self._next % len(self._recorded)]
            self._next += 1
            return recorded.hand_out()

    def held_tensors(self) -> list[Tensor]:
        """What the next hand-out of each batch shares its memory with, as it is."""
        with self._lock:
            return [pool.next_tensor for recorded in self._recorded for pool in recorded.pools]

    def rewind(self) -> None:
        with self._lock:
            self._next = 0

    def restore(self) -> None:
        """Undo what the loop changed in place. Call it between windows; may wait for the device."""
        with self._lock:
            for recorded in self._recorded:
                recorded.restore()

    def as_source(self) -> ReplaySource:
        """The buffer as an endless source; `release` of the buffer ends it."""
        return ReplaySource(self)

    def release(self) -> None:
        """Free every clone. The buffer can't be used again."""
        with self._lock:
            for recorded in self._recorded:
                recorded.release()
            self._recorded.clear()
            self.full = True

    def _refuse(self, reason: str) -> None:
        for recorded in self._recorded:
            recorded.release()
        self._recorded.clear()
        self.reason = reason

    def _clone(self, batch: Any, found: list[tuple[str, Tensor]]) -> _Recorded:
        pools: list[TensorPool] = []
        try:
            pools.extend(TensorPool(tensor, self._budget(tensor.device)) for _, tensor in found)
            host = self._budget(torch.device("cpu"))
            return _Recorded(batch, found, pools, host)
        except BaseException:
            for pool in pools:
                pool.release()
            raise

    def _budget(self, device: torch.device) -> Budget:
        if device not in self._budgets:
            free = available_bytes() or 0
            if device.type == "cuda":
                free = torch.cuda.mem_get_info(device)[0]
            self._budgets[device] = Budget(int(free * self._share))
        return self._budgets[device]


class ReplaySource:
    """A replay buffer as a `Source`; several may share one."""

    startup_ns: int | None = None

    def __init__(self, replay_buffer: ReplayBuffer) -> None:
        self._replay_buffer: ReplayBuffer | None = replay_buffer

    def next_batch(self) -> Any:
        """The next recorded batch; StopIteration once closed or where nothing is held."""
        if self._replay_buffer is None:
            raise StopIteration
        return self._replay_buffer.next_batch()

    def drop(self, n: int) -> int:
        """Recorded batches don't queue up: 0 have to be dropped."""
        return 0

    def close(self) -> None:
        """Let go of the buffer, which keeps its batches."""
        self._replay_buffer = None


class _Recorded:
    """One batch: its containers as a template around pools, one for each tensor."""

    def __init__(
        self,
        batch: Any,
        found: list[tuple[str, Tensor]],
        pools: list[TensorPool],
        host: Budget,
    ) -> None:
        self.pools = pools
        # The template holds a small stand-in where the batch has a tensor, so that it keeps none
        # of the user's memory alive; arrays are copied, twice.
        place = {id(tensor): i for i, (_, tensor) in enumerate(found)}
        self._index: dict[int, int] = {}
        self._stand_ins: list[Tensor] = []
        self._arrays: list[tuple[Array, Array]] = []  # handed out, pristine

        def stand_in(_: str, tensor: Tensor) -> Tensor:
            made = torch.empty(0)
            self._index[id(made)] = place[id(tensor)]
            self._stand_ins.append(made)
            return made

        def array(value: Array) -> Array:
            if not host.take(2 * value.nbytes):
                raise MemoryError(f"2 x {value.nbytes} bytes are more than may be taken")
            self._arrays.append((value.copy(), value.copy()))
            return self._arrays[-1][0]

        self._template = rebuild(batch, stand_in, on_array=array)
        self._holding = holders(self._template)

    def hand_out(self) -> Any:
        return rebuild(self._template, self._fill, holding=self._holding)

    def restore(self) -> None:
        for pool in self.pools:
            pool.restore()
        for handed_out, pristine in self._arrays:
            if handed_out.flags.writeable:
                handed_out[...] = pristine

    def release(self) -> None:
        for pool in self.pools:
            pool.release()
        self.pools = []

    def _fill(self, _: str, stand_in: Tensor) -> Tensor:
        return self.pools[self._index[id(stand_in)]].hand_out()


class Ahead:
    """Batches recorded ahead, for one window and for another that hands out the same again.

    Clones within a share of the free memory, as a `ReplayBuffer` keeps them.
    """

    def __init__(self, shapes: Shapes, n_wanted: int, until_ns: int) -> None:
        self._shapes = shapes
        self._until_ns = until_ns
        self._over = False
        self._buffer = ReplayBuffer(max_batches=n_wanted, keep_each=True)
        self.n_new = 0  # of these batches, those whose like the loop was never given before

    @property
    def wanting(self) -> bool:
        return not (self._over or self._buffer.full or self._buffer.reason)

    @property
    def n_batches(self) -> int:
        return self._buffer.n_batches

    @property
    def reason(self) -> str:
        """Why there are no more of them."""
        if self._buffer.reason is not None:
            return self._buffer.reason
        if self._buffer.short_of_memory:
            return "more of them do not fit in a tenth of the free memory"
        return "the loader made no more of them in time"

    def add(self, batch: Any) -> None:
        """The loader's next batch."""
        self.n_new += self._shapes.see(batch)
        self._buffer.record(batch)
        self._over = perf_counter_ns() > self._until_ns

    def end(self) -> None:
        """No more batches come."""
        self._over = True

    def held_tensors(self) -> list[Tensor]:
        """Of all its batches, for their copies to be made ahead as well."""
        return self._buffer.held_tensors()

    def restore(self) -> None:
        """Undo what the loop changed in place. Call it between windows."""
        self._buffer.restore()

    def release(self) -> None:
        self._over = True
        self._buffer.release()

    def as_source(self, meanwhile: ReplayBuffer) -> AheadSource:
        """These batches once, after `begin`; until then those of `meanwhile`, endlessly."""
        return AheadSource(self._buffer, meanwhile)


class AheadSource(ReplaySource):
    """Recorded batches while the loop gets steady, then those made ahead, each once."""

    def __init__(self, ahead: ReplayBuffer, meanwhile: ReplayBuffer) -> None:
        super().__init__(ahead)
        self._meanwhile = meanwhile
        self._n_left: int | None = None  # None: not begun

    def begin(self) -> None:
        """The window is about to begin: from now on those made ahead."""
        if self._replay_buffer is not None:
            self._replay_buffer.rewind()
            self._n_left = self._replay_buffer.n_batches

    def next_batch(self) -> Any:
        """The next batch. Raises StopIteration behind the last, and once closed."""
        if self._replay_buffer is None or self._n_left == 0:
            raise StopIteration
        if self._n_left is None:
            return self._meanwhile.next_batch()
        self._n_left -= 1
        return self._replay_buffer.next_batch()
