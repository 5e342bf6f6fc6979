"""Work on a Ray cluster: one task for each item, started, heard, and again where it was lost.

We place every task ourselves (`schedule`): only so is it known where a lost one ran, and that no
machine times two things at once. Ray's own retries are off.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from loaderdoctor.cluster import Place, RefusedError, Schedule

POLL_S = 0.2
# With no node left a cluster may still be growing.
NO_NODE_S = 60.0
# For tasks to end what they started, once they were told to.
CANCEL_S = 20.0

A = TypeVar("A")
R = TypeVar("R")
Tell = Callable[[Any], None]
# Done with an item on a node: `tell` sends word to the command while it works.
Work = Callable[[A, Tell], R]


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Came(Generic[R]):
    """What came of one item: word from its work, a new beginning elsewhere, or its end."""

    index: int
    place: Place | None = None
    told: Any = None
    again: str | None = None  # why it begins anew elsewhere: what it told is void
    late: bool = False  # its node has not begun: other work of Ray may hold its CPUs
    result: R | None = None
    given_up: str | None = None  # it could be done nowhere, with the reason


@dataclass(frozen=True, slots=True)
class _Task:
    index: int
    attempt: int
    place: Place


class Running:
    def __init__(self, ray: Any, on: Callable[[str], dict[str, Any]], schedule: Schedule) -> None:
        self._ray, self._on, self._schedule = ray, on, schedule
        self._tasks: dict[Any, _Task] = {}
        self._n_started = 0
        self._dead: set[str] = set()  # nodes that Ray still lists for some seconds
        here = ray.get_runtime_context().get_node_id()
        self._mailbox = ray.remote(_Mailbox).options(num_cpus=0, **on(here)).remote()

    def run(
        self,
        work: Work[A, R],
        items: Sequence[A],
        places: Callable[[], tuple[Place, ...]],
        *,
        whole: bool,
    ) -> Iterator[Came[R]]:
        schedule, told_failed, told_late = self._schedule, set[int](), set[int]()
        seen_place = time.monotonic()
        while True:
            now = time.monotonic()
            there = tuple(place for place in places() if place.id not in self._dead)
            seen_place = now if schedule.can_go_on(there) else seen_place
            for index in schedule.stuck(there, now):
                place = self._withdraw(index)
                yield Came(index=index, place=place, again="it did not begin there")
            schedule.settle(there)
            for index, place in schedule.assign(there, now):
                self._start(work, items[index], index, place, whole=whole)
            if not self._tasks and now - seen_place > NO_NODE_S:
                schedule.give_up("no node of the cluster is left that could do it")
            for index in schedule.failed.keys() - told_failed:
                told_failed.add(index)
                yield Came(index=index, given_up=schedule.failed[index])
            if schedule.finished:
                return
            if not self._tasks:
                time.sleep(POLL_S)
                continue
            if whole:
                time.sleep(POLL_S)  # not in Ray, which makes any signal a KeyboardInterrupt
            else:
                self._ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
            for task in list(self._tasks.values()):
                if task.attempt not in told_late and task.index in schedule.late(now):
                    told_late.add(task.attempt)
                    yield Came(index=task.index, place=task.place, late=True)
            ready, _ = self._ray.wait(
                list(self._tasks), num_returns=len(self._tasks), timeout=0, fetch_local=False
            )
            for task, said in self._mail():
                yield Came(index=task.index, place=task.place, told=said)
            alive = {place.id for place in there}
            gone = [
                r
                for r, task in self._tasks.items()
                if r not in ready and task.place.id not in alive
            ]
            for ref in gone:
                if self._is_dead(self._tasks[ref].place):
                    task = self._tasks.pop(ref)
                    why = "the node is gone"
                    schedule.lost(task.index, why)
                    yield Came(index=task.index, place=task.place, again=why)
            for ref in ready:
                task = self._tasks.pop(ref)
                yield self._result(ref, task)

    def cancel(self) -> None:
        """Interrupt what still runs, and wait until it has ended what it started."""
        refs = list(self._tasks)
        for ref in refs:
            self._ray.cancel(ref, force=False)
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=CANCEL_S)
        self._tasks.clear()
        self._ray.kill(self._mailbox)

    def _start(self, work: Work[A, R], item: A, index: int, place: Place, *, whole: bool) -> None:
        self._n_started += 1
        attempt = self._n_started
        needs = {"num_cpus": place.cpus, "num_gpus": place.gpus} if whole else {"num_cpus": 1}
        task = self._ray.remote(_run_there).options(max_retries=0, **needs, **self._on(place.id))
        ref = task.remote(self._mailbox, index, attempt, work, item)
        self._tasks[ref] = _Task(index, attempt, place)

    def _result(self, ref: Any, task: _Task) -> Came[Any]:
        """The work's result, or that the item goes elsewhere."""
        index, place = task.index, task.place
        errors = self._ray.exceptions
        try:
            # A copy: arrays would hold their part of the object store as long as they live.
            found = copy.deepcopy(self._ray.get(ref))
        except errors.RayTaskError as error:  # a fault of ours: it would fail anywhere
            self._schedule.done(index)
            why = f"failed on {place.host}: {line_of(error)}"
            return Came(index=index, place=place, given_up=why)
        except errors.RayError as error:
            why = line_of(error)
            if isinstance(error, errors.TaskUnschedulableError):
                self._schedule.withdrawn(index)  # it never began
            else:
                self._schedule.lost(index, why)
            if isinstance(error, (errors.NodeDiedError, errors.TaskUnschedulableError)):
                self._dead.add(place.id)
            return Came(index=index, place=place, again=why)
        if isinstance(found, _Refusal):
            self._schedule.refused(index, found.why)
            return Came(index=index, place=place, again=found.why)
        self._schedule.done(index)
        return Came(index=index, place=place, result=found)

    def _mail(self) -> Iterator[tuple[_Task, Any]]:
        """What running tasks told; that of lost ones is dropped."""
        now = {(task.index, task.attempt): task for task in self._tasks.values()}
        try:
            letters = self._ray.get(self._mailbox.take.remote(), timeout=CANCEL_S)
        except self._ray.exceptions.RayError:
            return
        for index, attempt, said in letters:
            if (task := now.get((index, attempt))) is None:
                continue
            self._schedule.begun(index)
            if said is not None:
                yield task, said

    def _withdraw(self, index: int) -> Place:
        ref = next(r for r, task in self._tasks.items() if task.index == index)
        self._ray.cancel(ref, force=False)
        self._schedule.withdrawn(index)
        return self._tasks.pop(ref).place

    def _is_dead(self, place: Place) -> bool:
        return not any(n["Alive"] and n["NodeID"] == place.id for n in self._ray.nodes())


class _Mailbox:
    """An actor beside the command: where tasks leave word."""

    def __init__(self) -> None:
        self._letters: deque[tuple[int, int, Any]] = deque()

    def put(self, index: int, attempt: int, said: Any) -> None:
        self._letters.append((index, attempt, said))

    def take(self) -> list[tuple[int, int, Any]]:
        letters = list(self._letters)
        self._letters.clear()
        return letters


def _run_there(mailbox: Any, index: int, attempt: int, work: Work[A, R], item: A) -> R | _Refusal:
    """Runs on the node, in the main thread of a worker process."""
    mailbox.put.remote(index, attempt, None)  # begun
    try:
        return work(item, lambda said: mailbox.put.remote(index, attempt, said))
    except RefusedError as refusal:
        return _Refusal(str(refusal))


_WORDS = {
    "NodeDiedError": "the node died or can't be reached",
    "TaskUnschedulableError": "the node is gone",
    "WorkerCrashedError": "its worker process was killed",
    "OutOfMemoryError": "Ray killed its worker for want of memory",
}


def line_of(error: BaseException) -> str:
    """What happened, from an error of Ray's: its own texts run over several lines."""
    if (words := _WORDS.get(type(error).__name__)) is not None:
        return words
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    return lines[0][:200] if lines else type(error).__name__
