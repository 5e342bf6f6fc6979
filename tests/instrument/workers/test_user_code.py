"""Whose code a line on a stack is: the user's, a package's, or the inside of torch and Python."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

import loaderdoctor
from loaderdoctor.instrument.workers.user_code import (
    FETCHER,
    INNER,
    OWN,
    PACKAGE,
    USER,
    Place,
    kind_of,
    locate,
)

TORCH, OURS = Path(torch.__file__).parent, Path(loaderdoctor.__file__).parent
STDLIB = Path(json.__file__).parent.parent
FETCH = Path("utils", "data", "_utils", "fetch.py")
BESIDE = Path(f"{TORCH}_geometric", "loader.py")


def function(file: str | Path) -> Any:
    """One of that file, which calls another."""
    return eval(compile("lambda then: then()", str(file), "eval"))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (TORCH / "functional.py", INNER),
        (TORCH / FETCH, FETCHER),
        (torchvision.__file__, PACKAGE),
        (BESIDE, PACKAGE),
        (json.__file__, INNER),
        (Path(f"{STDLIB}-project", "train.py"), USER),
        (OURS / "api.py", OWN),
        (OURS.with_name("loaderdoctor_experiments") / "train.py", USER),
        (OURS / "_recipes" / "resnet.py", USER),
        (__file__, USER),
    ],
)
def test_a_file_belongs_to_the_folder_it_lies_in(file: str | Path, kind: int) -> None:
    assert kind_of(function(file).__code__) == kind


def test_of_a_package_next_to_torch_its_own_line_is_named() -> None:
    """Where no line of the user's is on the stack: the package's, not what it calls in torch."""
    fetcher, package, inner = (function(TORCH / FETCH), function(BESIDE), function(TORCH / "a.py"))
    found: list[tuple[Place, Place] | None] = []

    def look() -> None:
        found.append(locate(sys._getframe(1)))  # from within torch

    fetcher(functools.partial(package, functools.partial(inner, look)))
    (place,) = found
    assert place is not None
    assert [file for file, _, _ in place] == [str(BESIDE), str(TORCH / "a.py")]
