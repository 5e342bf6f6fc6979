"""What of a script a guard would hold, and what workers import where there is none."""

from __future__ import annotations

import multiprocessing.spawn
import sys
import types
import warnings
from pathlib import Path

import pytest

from loaderdoctor.instrument.trial.trial_checks import AsIfGuarded, can_be_guarded, guard_code

SCRIPT = """\
import os
import multiprocessing
multiprocessing.set_start_method("spawn")
HERE = os.path.dirname(__file__)
FOLDER = os.path.join(HERE, "data")
UNUSED = print("side effect")
try:
    import json as quick
except ImportError:
    quick = None


class Data:
    def __getitem__(self, i):
        return os.path.join(FOLDER, str(i))


def train():
    pass


for _ in range(3):
    train()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return path


def test_the_guard_is_shown_with_what_runs_and_without_what_only_defines(script: Path) -> None:
    assert script.exists()
    assert guard_code() == (
        'if __name__ == "__main__":\n'
        '    multiprocessing.set_start_method("spawn")\n'
        '    UNUSED = print("side effect")\n'
        "    for _ in range(3):\n"
        "        train()"
    )


def test_a_guarded_script_needs_none(script: Path) -> None:
    script.write_text(SCRIPT.replace("for _", 'if __name__ == "__main__":\n  for _'))
    assert guard_code() is None
    guard = AsIfGuarded()
    with guard.starting():
        assert "loaderdoctor-" not in imported()
    guard.close()


def test_strings_that_python_warned_of_when_it_began_are_no_news(script: Path) -> None:
    script.write_text(SCRIPT + 'DIGITS = "\\d"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "DIGITS" in (guard_code() or "")


def imported() -> str:
    path = multiprocessing.spawn.get_preparation_data("a worker")["init_main_from_path"]
    assert isinstance(path, str)
    return path


def test_workers_import_the_definitions_and_find_their_file_where_it_was(script: Path) -> None:
    own = multiprocessing.spawn.get_preparation_data
    guard = AsIfGuarded()
    with guard.starting():
        stand_in = Path(imported())
    assert multiprocessing.spawn.get_preparation_data is own
    there: dict[str, object] = {"__name__": "__mp_main__"}
    exec(compile(stand_in.read_text(), str(stand_in), "exec"), there)
    assert there["FOLDER"] == str(script.parent / "data")
    assert there["Data"]()[3] == str(script.parent / "data" / "3")  # type: ignore[operator]
    assert "UNUSED" not in there
    guard.close()
    assert not stand_in.exists()


def test_a_module_run_by_name_is_left_alone(script: Path) -> None:
    assert can_be_guarded()
    sys.modules["__main__"].__spec__ = multiprocessing.__spec__
    assert not can_be_guarded()
    with AsIfGuarded().starting():
        assert script.exists()
