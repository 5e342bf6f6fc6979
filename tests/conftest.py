"""What every test rests on, and how `pytest -n 2` leaves tests that measure time undisturbed."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# An example takes as long as the machine lets it: what else runs is no failure of what is tested.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Hundreds of processes start here: none need compile our modules again, nor pytest these tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts a job in the background without job control has it ignore Ctrl-C, as `nohup`
# does a closed terminal, and children inherit that: tests that interrupt a command would then wait
# for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ALONE = "alone"
# Locked instead of files of their own, which would have to be removed whatever happens.
DOOR, ROOM = Path(__file__).parent, Path(__file__)


def pytest_configure(config: pytest.Config) -> None:
    """With `-n`, and no `--dist`, tests of one file stay together: they may share a fixture."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False  # keep the order below
    if hasattr(config.option, "testrunuid"):
        config.option.testrunuid = config.option.testrunuid or uuid.uuid4().hex


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `-n`, what must run alone comes last: until then all workers are busy."""
    if hasattr(config, "workerinput"):
        items.sort(key=_alone)
        told = _told(config.workerinput["testrunuid"])
        own = told.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps([item.nodeid for item in items if _alone(item)]))
        own.replace(told)


@pytest.hookimpl(optionalhook=True)  # of xdist, in the process that hands tests to the workers
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file; but what runs alone is handed out apart, or a worker would wait in mid-file."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope

    @cache
    def alone() -> frozenset[str]:  # asked when all workers have collected
        return frozenset(json.loads(_told(config.option.testrunuid).read_text()))

    scheduler._split_scope = lambda nodeid: file_of(nodeid) + ALONE * (nodeid in alone())
    return scheduler


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = getattr(session.config.option, "testrunuid", None)
    if run and not hasattr(session.config, "workerinput"):
        _told(run).unlink(missing_ok=True)


def _told(run: str) -> Path:
    """Where workers tell which tests run alone: of marks the scheduler knows nothing."""
    return Path(tempfile.gettempdir()) / f"loaderdoctor-tests-{run}.json"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    del nextitem
    _forget_what_is_there(item)
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with _in_the_room(alone=_alone(item)):
        return (yield)


_frozen_for: list[Path] = []


def _forget_what_is_there(item: pytest.Item) -> None:
    """Keep modules and what earlier files left alive out of what the collector goes through.

    Torch alone is 350,000 objects, a fifth of a second each time that a test collects its garbage.
    """
    if _frozen_for != [item.path]:
        _frozen_for[:] = [item.path]
        gc.collect()
        gc.freeze()


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker(ALONE) is not None


@contextmanager
def _in_the_room(*, alone: bool) -> Iterator[None]:
    """Until it ends no test of another worker runs that must be alone; none at all if `alone`."""
    door, room = os.open(DOOR, os.O_RDONLY), os.open(ROOM, os.O_RDONLY)
    try:
        fcntl.flock(door, fcntl.LOCK_EX)  # nobody passes one who waits for an empty room
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
    finally:
        # Unlocked, not only closed: processes that the test forked may hold these files open.
        for file in (room, door):
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)
