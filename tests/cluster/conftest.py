"""Real local Rays of several nodes. All are on this machine: tests say which count as others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loaderdoctor.cluster import Hardware, look_here
from loaderdoctor.cluster.ray_cluster import RayCluster

STORE_BYTES = 100 << 20


class Nodes:
    """A Ray cluster whose nodes pretend to be machines of their own, unless `machine` says so."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._as: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, *, cpus: int = 1, **hardware: Any) -> None:
        node = self._cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES)
        self._nodes[name] = node
        self._as[node.node_id] = {"host": name, "machine": name, **hardware}

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def kill_all(self) -> None:
        for name in list(self._nodes):
            self.kill(name)

    def connect(self, address: str | None = None) -> RayCluster:
        return RayCluster(address or self.address, look=self.look())

    def look(self) -> Callable[[], Hardware]:
        """Runs on the nodes: this machine, named and made as `add` said. Pickled by value."""
        known = self._as  # nodes that join later too: pickled when a node is asked

        def look() -> Hardware:
            from dataclasses import replace

            import ray

            return replace(look_here(), **known[ray.get_runtime_context().get_node_id()])

        return look

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    made = Nodes()
    yield made
    made.close()
