"""Whose code a call belongs to: the user's, a library's, or ours."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import CodeType
from typing import Any

import loaderdoctor
from loaderdoctor.advice.code import edit_loader_call
from loaderdoctor.attribution.host import is_user_frame
from loaderdoctor.instrument.system.interpreter import Site, source_lines, user_site
from loaderdoctor.settings import Settings

PACKAGE = Path(loaderdoctor.__file__).parent


def called_from(path: Path) -> Site:
    """The site found for a call in a file at `path`, which need not exist."""
    code: CodeType = compile("\n\nfound = user_site()", str(path), "exec")
    names: dict[str, Any] = {"user_site": user_site}
    exec(code, names)
    found: Site = names["found"]
    return found


def test_a_recipe_inside_the_installed_package_is_the_users_code() -> None:
    site = called_from(PACKAGE / "_recipes" / "mnist" / "train.py")
    assert site.label == "train.py:3"
    assert is_user_frame("site-packages/loaderdoctor/_recipes/mnist/train.py(41): main")


def test_the_rest_of_the_package_is_not() -> None:
    site = called_from(PACKAGE / "instrument" / "session.py")
    assert site.label != "session.py:3"
    assert not is_user_frame("site-packages/loaderdoctor/instrument/session/session.py(41): fetch")


def test_a_call_over_several_lines_keeps_its_layout_and_so_does_its_edit(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def main():\n    loader = DataLoader(\n        data,\n        num_workers=0,\n    )\n"
    )
    code = source_lines(str(path), 2, 5)
    assert code == "loader = DataLoader(\n    data,\n    num_workers=0,\n)"
    edit = edit_loader_call(code, Settings(num_workers=2, persistent_workers=True))
    assert edit.after.splitlines()[2:] == [
        "    num_workers=2,",
        "    persistent_workers=True,",
        ")",
    ]


class Held:
    """What a weak reference can tell of."""


def test_looking_where_something_is_built_holds_nothing_of_its_caller() -> None:
    gone = []

    def builds(given: Held) -> None:
        local = Held()
        gone.extend([weakref.ref(given), weakref.ref(local)])
        assert user_site(building=Held()).line
        del given, local
        assert [ref() for ref in gone] == [None, None]

    builds(Held())


class Base:
    def __init__(self) -> None:
        self.site = user_site(building=self)


class Derived(Base):
    def __init__(self) -> None:
        self.made = "before"
        super().__init__()


def test_an_object_is_built_where_its_class_is_called() -> None:
    made = Derived()
    assert made.site.code == "made = Derived()"
