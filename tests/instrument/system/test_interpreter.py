"""Whose code a call belongs to: the user's, a library's, or ours."""

from __future__ import annotations

import functools
import weakref
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import loaderdoctor
from loaderdoctor.advice.code import edit_loader_call
from loaderdoctor.attribution.host import is_user_frame
from loaderdoctor.instrument.system import Site, source_lines, user_site
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
    assert not is_user_frame("site-packages/loaderdoctor/instrument/session.py(41): fetch")


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


def library(path: Path, text: str) -> dict[str, Any]:
    """What a package installed at `path` defines; `Held`, `user_site`, `weakref` are there."""
    names: dict[str, Any] = {"Held": Held, "user_site": user_site, "weakref": weakref}
    exec(compile(text, str(path / "site-packages" / "trainerlib" / "loop.py"), "exec"), names)
    return names


TRAINER = """
class Loader:
    def __init__(self):
        self.site = user_site(building=self)

def make():
    return Loader()

def fit(batches):
    gone = []
    for batch in batches:
        gone.append(weakref.ref(batch))
        made = make()
        del batch
        gone.append(weakref.ref(made))
        del made
    return [ref() for ref in gone]
"""


def test_a_librarys_loop_that_builds_loaders_drops_its_batches_too(tmp_path: Path) -> None:
    fit = library(tmp_path, TRAINER)["fit"]
    assert fit(Held() for _ in range(5)) == [None] * 10


def test_variables_that_a_function_asked_for_itself_stay_as_they_were(tmp_path: Path) -> None:
    text = TRAINER + "\ndef asks():\n    x = 1\n    own = locals()\n    make()\n    return own\n"
    assert library(tmp_path, text)["asks"]() == {"x": 1}


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


def test_one_built_within_anothers_construction_is_built_there() -> None:
    class Nested(Base):
        inner: Nested | None = None

        def __init__(self, *, nested: bool) -> None:
            super().__init__()
            if nested:
                self.inner = Nested(nested=False)

    made = Nested(nested=True)
    assert made.inner is not None
    assert made.site.code == "made = Nested(nested=True)"
    assert made.inner.site.code == "self.inner = Nested(nested=False)"


@pytest.mark.parametrize("names_it", [True, False])
def test_what_a_library_wraps_around_a_construction_is_passed_over(
    tmp_path: Path, names_it: bool
) -> None:
    wrap = library(
        tmp_path,
        "def wrap(inner):\n"
        "    def wrapper(obj, *args):\n"
        "        return inner(obj, *args)\n"
        "    return wrapper\n",
    )["wrap"]

    class Inner(Base):
        def __init__(self) -> None:
            super().__init__()

    class Outer(Inner):
        def __init__(self) -> None:
            super().__init__()

    for cls in (Inner, Outer):
        own = cls.__dict__["__init__"]
        wrapper = wrap(wrap(own))
        setattr(cls, own.__name__, functools.wraps(own)(wrapper) if names_it else wrapper)
    made = Outer()
    assert made.site.code == "made = Outer()"
    assert made.site.library is None


def test_a_function_that_an_init_calls_is_no_construction() -> None:
    def build() -> Base:
        return Other()

    class Other(Base):
        def __init__(self) -> None:
            assert callable(build)
            super().__init__()

    assert build().site.code == "return Other()"
