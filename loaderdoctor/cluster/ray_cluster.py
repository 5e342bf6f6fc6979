"""A Ray cluster: connecting, and which nodes can take work. Ray is imported on entering, only."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from loaderdoctor import __version__
from loaderdoctor.cluster import Hardware, Place, Schedule, look_here
from loaderdoctor.cluster.ray_tasks import POLL_S, Came, Running, Work, line_of
from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.system.machine import usable_cpus

EXTRA = "--engine ray needs Ray: pip install 'loaderdoctor[ray]'"
REFRESH_S = 2.0
# A node's first answer: its worker starts Python and imports us, perhaps from a network disk.
LOOK_S = 120.0
KNOCK_S = 10.0
# Of a Ray started here: results are small and are taken out at once.
LOCAL_STORE_BYTES = 256 << 20

A = TypeVar("A")
R = TypeVar("R")


class RayCluster:
    """A connection to a cluster; a context manager. `look` runs on each node to say what it is."""

    def __init__(
        self, address: str | None = None, look: Callable[[], Hardware] = look_here
    ) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._look = look
        self._ray: Any = None
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
        _knock(self._address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of your runs
        os.environ.setdefault("RAY_worker_niceness", "0")  # of a Ray started here; 15 otherwise
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise UsageError(EXTRA) from error
        self._ray = ray
        try:
            with _own_sigterm():
                self._init()
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"--ray-address {self._address}: " if self._address else ""
            line = str(error).strip().splitlines()
            raise RunError(
                f"{where}no Ray cluster answers ({line[0] if line else type(error).__name__})."
            ) from error
        return self

    def __exit__(self, *raised: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()

    def _init(self) -> None:
        quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
        try:
            self._ray.init(address=self._address or "auto", **quiet)
        except ConnectionError:
            if self._address is not None:
                raise
            self._ray.init(
                address="local",
                num_cpus=max(1, int(usable_cpus())),
                include_dashboard=False,
                object_store_memory=LOCAL_STORE_BYTES,
                **quiet,
            )

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
                self._seen[node] = f"{host}: loaderdoctor can't start there ({line_of(error)})"
                continue
            if found.version != __version__:
                self._seen[node] = (
                    f"{found.host}: has loaderdoctor {found.version}, not {__version__}"
                )
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
        allowed: Callable[[int, Place], bool] = lambda index, place: True,
    ) -> Generator[Came[R], None, None]:
        """Run `work(item, tell)` for each item somewhere; what comes, as it comes.

        With `exclusive` an item has a whole machine: all CPUs and GPUs of its node, and no other
        exclusive item on a node of the same machine. Else as many run on a node as it has CPUs
        and memory for `bytes_each`. `allowed` says whether an item may go to a node.
        """

        def slots(place: Place) -> int:
            room = int(place.memory_bytes / bytes_each) if place.memory_bytes and bytes_each else 0
            cpus = int(place.cpus)
            return max(1, min(cpus, room)) if room or bytes_each else max(1, cpus)

        running = Running(
            self._ray,
            self._on,
            Schedule(len(items), exclusive=exclusive, slots=slots, allowed=allowed),
        )
        try:
            yield from running.run(work, items, self.places, whole=exclusive)
        finally:
            running.cancel()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does: Ray would end the process there and then, without a report."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _knock(address: str | None) -> None:
    """Raises RunError where nobody listens: Ray itself would try for minutes."""
    if address in (None, "auto", "local"):
        return
    host, _, port = str(address).rpartition(":")
    try:
        if not host or not port.isdigit():
            raise UsageError(f"--ray-address {address}: write HOST:PORT, as 10.0.0.1:6379.")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S):
            pass
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"--ray-address {address}: no Ray cluster answers ({why}).") from error


def _look_there(look: Callable[[], Hardware]) -> Hardware:
    return look()
