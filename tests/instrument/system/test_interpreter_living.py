"""The living instances of a class, found beside threads that build tuples."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import loaderdoctor
from loaderdoctor.instrument.system import living


class Base:
    pass


class Sub(Base):
    __slots__ = ("value",)


class SubSub(Sub):
    pass


def test_instances_of_a_class_and_its_subclasses() -> None:
    kept = [Base(), Sub(), SubSub()]
    assert {id(o) for o in living(Base)} == {id(o) for o in kept}
    assert living(SubSub) == [kept[2]]


def test_none_is_kept_alive() -> None:
    one = Base()
    gone = weakref.ref(one)
    assert living(Base) == [one]
    del one
    assert gone() is None
    assert living(Base) == []


def test_a_thread_that_builds_tuples_goes_on() -> None:
    failures: list[BaseException] = []
    ended = threading.Event()

    def build() -> None:
        try:
            while not ended.is_set():
                tuple(float(i) for i in range(200))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    try:
        for _ in range(30):
            living(Base)
    finally:
        ended.set()
        thread.join()
    assert not failures


def test_nothing_asks_for_every_object() -> None:
    """`gc.get_objects` breaks a tuple that another thread is making, in any process of the user."""
    folder = Path(loaderdoctor.__file__).parent
    asking = [p.name for p in folder.rglob("*.py") if "gc.get_objects(" in _code(p.read_text())]
    assert asking == []


def _code(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "`gc.get_objects()`" not in line)
