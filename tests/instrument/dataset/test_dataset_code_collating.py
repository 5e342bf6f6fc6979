"""Whose code a loader's collate_fn is, through partials and wrappers, from real files."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate, default_convert

from loaderdoctor.instrument.dataset.dataset_code import collate_library
from loaderdoctor.instrument.session.loaders import loader_record
from loaderdoctor.instrument.system import user_site

LIBRARY = """\
class Collater:
    def __call__(self, samples):
        return samples

    def method(self, samples):
        return samples


class Wrapper:
    def __init__(self, data_collator):
        self.data_collator = data_collator

    def __call__(self, samples):
        return self.data_collator(samples)


def collate(samples, extra=None):
    return samples
"""


def mine(samples: list[Any]) -> list[Any]:
    return samples


class Mine:
    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples

    def method(self, samples: list[Any]) -> list[Any]:
        return samples


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package as pip installs one."""
    package = tmp_path / "site-packages" / "some_graphs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package.parent))
    yield importlib.import_module("some_graphs")
    sys.modules.pop("some_graphs")


@pytest.mark.parametrize(
    "collate", [mine, Mine(), Mine().method, functools.partial(mine), lambda x: x, list]
)
def test_functions_and_objects_of_the_users_file_are_the_users(collate: Any) -> None:
    assert collate_library(collate) is None


@pytest.mark.parametrize(
    "collate", [default_collate, default_convert, functools.partial(default_collate)]
)
def test_what_dataloader_does_by_itself_is_torchs(collate: Any) -> None:
    assert collate_library(collate) == "torch"


def test_an_installed_packages_functions_and_objects_are_its_own(graphs: ModuleType) -> None:
    partial = functools.partial(graphs.collate, extra=1)
    for collate in (graphs.collate, partial, graphs.Collater(), graphs.Collater().method):
        assert collate_library(collate) == "some_graphs"


def test_a_wrapper_is_whose_it_holds_and_a_subclass_whose_it_is(graphs: ModuleType) -> None:
    assert collate_library(graphs.Wrapper(mine)) is None
    assert collate_library(graphs.Wrapper(graphs.Collater())) == "some_graphs"
    derived = type("Derived", (graphs.Collater,), {"__module__": __name__})
    assert collate_library(derived()) is None


def test_the_record_of_a_loader_says_so(graphs: ModuleType) -> None:
    def record(**more: Any) -> Any:
        return loader_record(DataLoader(TensorDataset(torch.ones(2)), **more), user_site())

    assert record().collate_library == "torch"
    assert record(collate_fn=mine).collate_library is None
    assert not record().has_init and record(num_workers=1, worker_init_fn=mine).has_init
    found = record(collate_fn=graphs.Collater())
    assert (found.collate, found.collate_library) == ("Collater", "some_graphs")
