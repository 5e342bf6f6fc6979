"""Who gets what next, and what becomes of work whose node is lost: no cluster needed."""

from __future__ import annotations

import random

from loaderdoctor.cluster import Place, Schedule


def place(name: str, *, cpus: float = 1.0, machine: str | None = None) -> Place:
    return Place(id=name, host=f"host-{name}", machine=machine or name, cpus=cpus)


def test_a_place_holds_as_many_items_as_it_has_cpus() -> None:
    schedule = Schedule(9)
    given = schedule.assign([place("a", cpus=3), place("b", cpus=1)], now=0.0)
    at = [one.id for _, one in given]
    assert (at.count("a"), at.count("b")) == (3, 1)
    assert schedule.assign([place("a", cpus=3), place("b", cpus=1)], now=0.0) == []
    schedule.done(given[0][0])
    assert len(schedule.assign([place("a", cpus=3), place("b", cpus=1)], now=0.0)) == 1


def test_exclusive_items_never_share_a_machine_whatever_comes() -> None:
    """Nodes of unlike size, two of them on one machine, that die and come back at random."""
    rng = random.Random(3)
    nodes = [
        place("a", cpus=64),
        place("b", cpus=2),
        place("c", machine="m"),
        place("d", machine="m"),
    ]
    for _ in range(200):
        schedule = Schedule(8, exclusive=True)
        at: dict[int, Place] = {}
        n_most = 0
        for now in range(2000):
            alive = [one for one in nodes if rng.random() < 0.8]
            at.update(schedule.assign(alive, float(now)))
            machines = [at[index].machine for index in schedule.running]
            assert len(set(machines)) == len(machines)
            n_most = max(n_most, len(machines))
            for index in schedule.running:
                what = rng.random()
                if what < 0.3:
                    schedule.done(index)
                elif what < 0.5:
                    schedule.lost(index, "gone")
                elif what < 0.6:
                    schedule.withdrawn(index)
                elif what < 0.7:
                    schedule.begun(index)
            if schedule.finished:
                break
        assert schedule.finished
        assert n_most <= 3


def test_lost_work_goes_elsewhere_and_is_given_up_after_three_nodes() -> None:
    schedule = Schedule(1)
    places = [place(name) for name in "abcd"]
    tried = []
    for _ in range(3):
        ((index, where),) = schedule.assign(places, now=0.0)
        tried.append(where.id)
        schedule.lost(index, "the node is gone")
    assert len(set(tried)) == 3
    assert schedule.finished
    assert "lost 3 times" in schedule.failed[0]
    assert f"host-{tried[-1]}: the node is gone" in schedule.failed[0]


def test_with_nowhere_else_to_go_a_lost_item_is_tried_again_where_it_was() -> None:
    schedule = Schedule(1)
    ((index, _),) = schedule.assign([place("a")], now=0.0)
    schedule.lost(index, "its worker was killed")
    assert [one.id for _, one in schedule.assign([place("a")], now=0.0)] == ["a"]


def test_a_lost_item_waits_for_another_node_rather_than_going_back() -> None:
    schedule = Schedule(2)
    places = [place("a"), place("b")]
    given = {where.id: index for index, where in schedule.assign(places, now=0.0)}
    schedule.lost(given["a"], "its worker was killed")
    assert schedule.assign(places, now=0.0) == []  # b is busy
    schedule.done(given["b"])
    assert [(i, one.id) for i, one in schedule.assign(places, now=0.0)] == [(given["a"], "b")]


def test_what_every_node_refuses_is_given_up_with_the_reason_and_not_before() -> None:
    schedule = Schedule(1)
    places = [place("a"), place("b")]
    ((index, _),) = schedule.assign(places, now=0.0)
    schedule.refused(index, "host-a sees no such file")
    schedule.settle(places)
    assert not schedule.finished
    ((index, where),) = schedule.assign(places, now=0.0)
    schedule.refused(index, f"{where.host} sees no such file")
    schedule.settle(places)
    assert schedule.failed == {0: f"{where.host} sees no such file"}


def test_work_that_waits_for_a_busy_node_moves_where_there_is_room() -> None:
    schedule = Schedule(2, exclusive=True, patience_s=10.0)
    places = [place("a"), place("b")]
    given = {where.id: index for index, where in schedule.assign(places, now=0.0)}
    schedule.begun(given["a"])
    assert schedule.stuck(places, now=100.0) == []  # a is still at work
    schedule.done(given["a"])
    assert schedule.stuck(places, now=5.0) == []
    assert schedule.late(5.0) == []
    assert schedule.late(100.0) == [given["b"]]
    assert schedule.stuck(places, now=100.0) == [given["b"]]
    schedule.withdrawn(given["b"])
    assert [(i, one.id) for i, one in schedule.assign(places, now=100.0)] == [(given["b"], "a")]


def test_work_that_has_begun_is_never_taken_away() -> None:
    schedule = Schedule(1, exclusive=True)
    ((index, _),) = schedule.assign([place("a")], now=0.0)
    schedule.begun(index)
    assert schedule.stuck([place("a"), place("b")], now=1e6) == []
