"""A Ray cluster as places for work: the only module that imports Ray.

We place every task ourselves (`schedule`), since only so is it known where a lost one ran, and
that no machine times two things at once.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from loaderdoctor import __version__
from loaderdoctor.cluster.hardware import Hardware, look_here
from loaderdoctor.cluster.schedule import Place, RefusedError, Schedule
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.machine import usable_cpus

EXTRA = "--engine ray needs Ray: pip install 'loaderdoctor[ray]'"
POLL_S = 0.2
REFRESH_S = 2.0
# A node's first answer: its worker starts Python and imports us, perhaps from a network disk.
LOOK_S = 120.0
# With no node left a cluster may still be growing.
NO_NODE_S = 60.0
# For tasks to end what they started, once they were told to.
CANCEL_S = 20.0
# Of a Ray started here: results are small and are taken out at once.
LOCAL_STORE_BYTES = 256 << 20

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
    again: bool = False  # its node was lost or can't do it: what it told is void
    result: R | None = None
    given_up: str | None = None  # it could be done nowhere, with the reason


@dataclass(frozen=True, slots=True)
class _Task:
    index: int
    attempt: int
    place: Place


class RayCluster:
    """A connection to a cluster; a context manager. `look` runs on each node to say what it is."""

    def __init__(
        self, address: str | None = None, look: Callable[[], Hardware] = look_here
    ) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._look = look
        self._ray: Any = None
        self._is_local = False
        self._seen: dict[str, Hardware | str] = {}  # by node id; text: why it can't be used
        self._asked: dict[str, tuple[Any, float]] = {}
        self._places: tuple[Place, ...] = ()
        self._refreshed = float("-inf")

    def __enter__(self) -> RayCluster:
        """Connect. Raises UsageError without the extra, RunError where no cluster answers."""
        if self._address is not None and "://" in self._address:
            raise UsageError(
                f"--ray-address {self._address}: only a cluster's own address (HOST:PORT) is "
                "taken. Run loaderdoctor on a machine of the cluster, or as a Ray job there."
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of your runs
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise UsageError(EXTRA) from error
        self._ray = ray
        quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
        try:
            try:
                ray.init(address=self._address or "auto", **quiet)
            except ConnectionError:
                if self._address is not None:
                    raise
                ray.init(
                    num_cpus=max(1, int(usable_cpus())),
                    include_dashboard=False,
                    object_store_memory=LOCAL_STORE_BYTES,
                    **quiet,
                )
                self._is_local = True
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"--ray-address {self._address}: " if self._address else ""
            line = str(error).strip().splitlines()
            raise RunError(
                f"{where}no Ray cluster answers ({line[0] if line else type(error).__name__})."
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._ray is not None:
            self._ray.shutdown()

    # ------------------------------------------------------------ nodes

    @property
    def unusable(self) -> tuple[str, ...]:
        """Why some nodes take no work, a line each."""
        return tuple(why for why in self._seen.values() if isinstance(why, str))

    def hardware(self, place: Place) -> Hardware:
        """What a node that was given work is."""
        found = self._seen[place.id]
        assert isinstance(found, Hardware)
        return found

    def places(self) -> tuple[Place, ...]:
        """Nodes that are alive, have CPUs and answered; asked again every REFRESH_S."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_S:
            return self._places
        self._refreshed = now
        nodes = [n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        for node in nodes:
            if node["NodeID"] not in self._seen and node["NodeID"] not in self._asked:
                self._asked[node["NodeID"]] = (self._ask(node["NodeID"]), now)
        self._collect(now, {node["NodeID"]: node["NodeManagerHostname"] for node in nodes})
        found = []
        for node in nodes:
            hardware = self._seen.get(node["NodeID"])
            if isinstance(hardware, Hardware):
                resources = node["Resources"]
                found.append(
                    Place(
                        id=node["NodeID"],
                        host=hardware.host,
                        machine=hardware.machine,
                        cpus=float(resources["CPU"]),
                        gpus=float(resources.get("GPU", 0.0)),
                        memory_bytes=int(resources.get("memory", 0)) or None,
                    )
                )
        self._places = tuple(found)
        return self._places

    def wait_places(self) -> tuple[Place, ...]:
        """The nodes, once all that are there have answered. Raises RunError where none can work."""
        end = time.monotonic() + LOOK_S
        while True:
            self._refreshed = float("-inf")
            places = self.places()
            if not self._asked and places:
                return places
            if time.monotonic() > end or (not self._asked and self.unusable):
                if places:
                    return places
                why = "; ".join(self.unusable) or "it has no node with a CPU"
                raise RunError(f"the Ray cluster can take no work: {why}.")
            time.sleep(POLL_S)

    def _ask(self, node: str) -> Any:
        task = self._ray.remote(_look_there)
        return task.options(num_cpus=0, max_retries=1, **self._on(node)).remote(self._look)

    def _collect(self, now: float, hosts: dict[str, str]) -> None:
        """Take in what nodes answered."""
        for node, (answer, asked_at) in list(self._asked.items()):
            host = hosts.get(node)
            if host is None:
                del self._asked[node]  # gone before it answered
                continue
            ready, _ = self._ray.wait([answer], timeout=0)
            if not ready:
                if now - asked_at > LOOK_S:
                    self._seen[node] = f"{host}: no answer within {LOOK_S:.0f} s"
                    del self._asked[node]
                continue
            del self._asked[node]
            try:
                found: Hardware = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                self._seen[node] = f"{host}: loaderdoctor can't start there ({_line(error)})"
                continue
            if found.version != __version__:
                self._seen[node] = f"{host}: has loaderdoctor {found.version}, not {__version__}"
                continue
            self._seen[node] = found

    def _on(self, node: str) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}

    # ------------------------------------------------------------ work

    def run(
        self,
        work: Work[A, R],
        items: Sequence[A],
        *,
        exclusive: bool = False,
        bytes_each: float = 0.0,
    ) -> Iterator[Came[R]]:
        """Run `work(item, tell)` for each item somewhere; what comes, as it comes.

        With `exclusive` an item has a whole machine: all CPUs and GPUs of its node, and no other
        exclusive item on a node of the same machine. Else as many run on a node as it has CPUs
        and memory for `bytes_each`.
        """

        def slots(place: Place) -> int:
            room = int(place.memory_bytes / bytes_each) if place.memory_bytes and bytes_each else 0
            cpus = int(place.cpus)
            return max(1, min(cpus, room)) if room or bytes_each else max(1, cpus)

        running = _Running(
            self._ray, self._on, Schedule(len(items), exclusive=exclusive, slots=slots)
        )
        try:
            yield from running.run(work, items, self.places, whole=exclusive)
        finally:
            running.cancel()


class _Running:
    """The tasks of one `run`."""

    def __init__(self, ray: Any, on: Callable[[str], dict[str, Any]], schedule: Schedule) -> None:
        self._ray, self._on, self._schedule = ray, on, schedule
        self._tasks: dict[Any, _Task] = {}
        self._attempts: dict[int, int] = {}
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
        schedule, told_failed = self._schedule, set[int]()
        seen_place = time.monotonic()
        while True:
            now = time.monotonic()
            there = places()
            seen_place = now if there else seen_place
            for index in schedule.stuck(there, now):
                self._withdraw(index)
            schedule.settle(there)
            for index, place in schedule.assign(there, now):
                self._start(work, items[index], index, place, whole=whole)
            if not self._tasks and now - seen_place > NO_NODE_S:
                schedule.give_up("no node of the cluster is left")
            for index in schedule.failed.keys() - told_failed:
                told_failed.add(index)
                yield Came(index=index, given_up=schedule.failed[index])
            if schedule.finished:
                return
            if not self._tasks:
                time.sleep(POLL_S)
                continue
            self._ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
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
                    schedule.lost(task.index, "the node is gone")
                    yield Came(index=task.index, place=task.place, again=True)
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
        attempt = self._attempts[index] = self._attempts.get(index, 0) + 1
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
            why = f"failed on {place.host}: {_line(error)}"
            return Came(index=index, place=place, given_up=why)
        except errors.RayError as error:
            self._schedule.lost(index, _line(error))
            return Came(index=index, place=place, again=True)
        if isinstance(found, _Refusal):
            self._schedule.refused(index, found.why)
            return Came(index=index, place=place, again=True)
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

    def _withdraw(self, index: int) -> None:
        ref = next(r for r, task in self._tasks.items() if task.index == index)
        self._ray.cancel(ref, force=False)
        del self._tasks[ref]
        self._schedule.withdrawn(index)

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


def _look_there(look: Callable[[], Hardware]) -> Hardware:
    return look()


def _run_there(mailbox: Any, index: int, attempt: int, work: Work[A, R], item: A) -> R | _Refusal:
    """Runs on the node, in the main thread of a worker process."""
    mailbox.put.remote(index, attempt, None)  # begun
    try:
        return work(item, lambda said: mailbox.put.remote(index, attempt, said))
    except RefusedError as refusal:
        return _Refusal(str(refusal))


def _line(error: BaseException) -> str:
    """The line of an error of Ray's that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    return lines[0][:200] if lines else type(error).__name__
