"""Where a loop takes its batches: the loader, and not what it is built of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.advice.patch import iterated
from loaderdoctor.advice.writing import written
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of

BUILT = """import torch
from torch.utils.data import DataLoader

def get_loader({parameters}):
    return DataLoader({dataset}, batch_size=2, shuffle=True)  # train loader

rows = list(range(8))
for epoch in range(3):
    for batch in {loop}:  # train loop
        print(batch)
"""


@pytest.mark.parametrize(
    ("parameters", "dataset", "loop"),
    [
        ("data", "data", "get_loader(rows)"),
        ("n", "list(range(n))", "get_loader(32)"),
        ("", "rows", "enumerate(get_loader())"),
        ("data", "data", "enumerate(get_loader(rows))"),
    ],
)
def test_a_call_that_builds_the_loader_is_the_loader(
    parameters: str, dataset: str, loop: str
) -> None:
    text = BUILT.format(parameters=parameters, dataset=dataset, loop=loop)
    facts = facts_of(Path("train.py"), text=text)
    assert facts.main_loader is not None
    at = iterated(facts, facts.main_loader)
    assert at is not None
    call = loop.removeprefix("enumerate(").removesuffix(")") if "enum" in loop else loop
    assert at.source.code(at.loader) == call
    after = applied(text, blocks(written(facts, Settings(background="host")).code))
    assert f"BackgroundGenerator(iter({call}), max_prefetch=2)" in after


LEFT = """import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.x = torch.ones(4000, 1728)

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        return self.x[i] * i


loader = DataLoader(Rows(), batch_size=16)  # train loader
{look}


def train(n):
    for batch in loader:  # train loop
        for value in range(3):
            if value:
                break
        n += 1
        total = batch.sum().item()
        if n == 12:
            {leave}
    return total


print(train(0))
"""


@pytest.mark.parametrize("leave", ["break", "return total", "print(total), exit()", "pass"])
def test_a_loop_that_is_left_early_leaves_no_thread_behind(leave: str, tmp_path: Path) -> None:
    """Else Python may abort as it ends (exit code 134), as it did in each of nine runs."""
    text = LEFT.format(leave=leave, look="first = next(iter(loader))")
    found = written(facts_of(Path("train.py"), text=text), Settings(background="host"))
    after = applied(text, blocks(found.code))
    assert ("fetched_ahead(iter(loader))" in after) is (leave != "pass")
    assert "BackgroundGenerator(" in after
    if leave in ("pass", "return total"):
        return
    for name, code in (("own", text), ("changed", after)):
        (tmp_path / f"{name}.py").write_text(code)
    ends = [
        subprocess.run([sys.executable, tmp_path / f"{name}.py"], capture_output=True, text=True)
        for name in ("own", "changed", "changed")
    ]
    assert [x.returncode for x in ends] == [0] * 3, ends[1].stderr
    assert {x.stdout for x in ends} == {ends[0].stdout}


def test_a_loader_that_is_iterated_twice_at_once_gets_no_thread_for_one_of_them() -> None:
    """The trial gave both one: the code for one of them took longer than the loop as it is."""
    text = LEFT.format(leave="pass", look="others = iter(loader)")
    found = written(facts_of(Path("train.py"), text=text), Settings(background="host"))
    assert not found.code and "wherever the loop takes batches" in (found.idea or "")


def test_what_wraps_a_loader_is_looked_through() -> None:
    text = BUILT.format(parameters="data", dataset="data", loop="enumerate(progress(loader))")
    text = text.replace("for epoch", "progress = iter\nloader = get_loader(rows)\nfor epoch")
    facts = facts_of(Path("train.py"), text=text)
    assert facts.main_loader is not None
    at = iterated(facts, facts.main_loader)
    assert at is not None
    assert at.source.code(at.loader) == "loader"


@pytest.mark.parametrize(
    ("bound", "written_here"),
    [
        ("partial(DataLoader, batch_size=2)", True),
        ("functools.partial(torch.utils.data.DataLoader, num_workers=0)", True),
        ("partial(DataLoader, rows)", False),  # its first argument is no dataset
        ("partial(print, 1)", False),
    ],
)
def test_a_loader_with_arguments_bound_before_is_one(bound: str, written_here: bool) -> None:
    text = f"make = {bound}\nrows = []\nbatches = make(rows)  # train loader\n"
    said = written(facts_of(Path("train.py"), text=text), Settings(num_workers=3))
    assert ("make(rows, num_workers=3)  # train loader" in said.code) is written_here


@pytest.mark.parametrize("name", ["make", "make_loader"])  # the second looks like a loader's
@pytest.mark.parametrize(
    "bound", ["collate_fn=mine", "worker_init_fn=seeded", "sampler=drawn", "**options"]
)
def test_functions_bound_before_are_not_overwritten(name: str, bound: str) -> None:
    text = f"{name} = partial(DataLoader, {bound})\nrows = []\nbatches = {name}(rows)"
    facts = facts_of(Path("train.py"), text=f"{text}  # train loader\n")
    for settings in (Settings(packed=True), Settings(worker_cpus="all", num_workers=2)):
        assert f"{name}(rows, " not in written(facts, settings).code


@pytest.mark.parametrize(
    ("built", "edited"),
    [
        ("DataLoader(rows, 2) if debug else DataLoader(rows, 8)", "DataLoader(rows, 8{})"),
        ("DataLoader(rows, 8) if debug else DataLoader(rows, 2)", "DataLoader(rows, 8{})"),
        (
            "DataLoader(rows, 8) if debug else DataLoader(rows[:8], 8)",
            None,
        ),  # not known which
        ("DataLoader(rows, n) if debug else None", "DataLoader(rows, n{})"),
    ],
)
def test_of_two_loaders_that_one_line_may_build_the_one_that_ran_is_changed(
    built: str, edited: str | None
) -> None:
    text = BUILT.replace("DataLoader({dataset}, batch_size=2, shuffle=True)", built)
    text = text.format(parameters="debug=False, n=8", loop="get_loader()")
    facts = facts_of(Path("train.py"), text=text)
    found = written(facts, Settings(num_workers=2))
    if edited is None:
        assert not found.code and "where the DataLoader is built" in (found.idea or "")
        return
    after = applied(text, blocks(found.code))
    assert edited.format(", num_workers=2") in after
    assert after.count("num_workers") == 1


@pytest.mark.parametrize(
    ("own", "ahead", "kept"),
    [
        ("n", "4 if n else None", "n > 0"),
        ('cfg["n"]', '4 if cfg["n"] else None', 'cfg["n"] > 0'),
        ("n // 2", "4 if (n // 2) else None", "(n // 2) > 0"),
        ("2", "4", "True"),
        ("int(n)", "4 if int(n) else None", "int(n) > 0"),
    ],
)
def test_what_needs_workers_goes_without_where_an_option_says_none(
    own: str, ahead: str, kept: str
) -> None:
    built = f"DataLoader(rows, batch_size=2, num_workers={own})"
    text = BUILT.replace("DataLoader({dataset}, batch_size=2, shuffle=True)", built)
    text = text.format(parameters="n=0", loop="get_loader()")
    facts = facts_of(Path("train.py"), text=text)
    found = written(facts, Settings(persistent_workers=True, prefetch_factor=4))
    after = applied(text, blocks(found.code))
    assert f"prefetch_factor={ahead}, " in after or f"prefetch_factor={ahead})" in after
    assert f"persistent_workers={kept}, " in after or f"persistent_workers={kept})" in after


def test_a_loader_under_another_name_is_found_and_its_places_are_known() -> None:
    text = BUILT.replace("import DataLoader", "import DataLoader as DL")
    built = "DL(rows, 2, True, None, None, 1)"  # the sixth are the workers
    text = text.replace("DataLoader({dataset}, batch_size=2, shuffle=True)", built)
    text = text.format(parameters="", loop="get_loader()")
    found = written(facts_of(Path("train.py"), text=text), Settings(num_workers=3))
    assert "DL(rows, 2, True, None, None, 3)" in applied(text, blocks(found.code))


@pytest.mark.parametrize(
    "over",
    ["map(f, loader)", "chain(loader, rows)", "range(len(loader))", "product(loader, rows)",
     "sorted(loader)", "enumerate(zip(loader, rows))", "log_every(loader, 10)",
     "enumerate(named(loader))"],
)  # fmt: skip
def test_what_takes_more_than_the_batches_is_no_wrapper(over: str) -> None:
    helpers = (
        "def log_every(batches, n):\n    print(len(batches))\n    yield from batches\n\n"
        "def named(batches):\n    print(batches.dataset)\n    return batches\n\n"
        "def plain(batches):\n    yield from batches\n\nrows = "
    )
    text = BUILT.format(parameters="data", dataset="data", loop=over)
    text = text.replace("rows = ", helpers).replace(
        "for epoch", "loader = get_loader(rows)\nfor epoch"
    )
    facts = facts_of(Path("train.py"), text=text)
    assert facts.main_loader is not None
    assert iterated(facts, facts.main_loader) is None
    assert written(facts, Settings(background="host")).code == ""
    seen_through = facts_of(Path("train.py"), text=text.replace(over, "plain(loader)"))
    assert seen_through.main_loader is not None
    assert iterated(seen_through, seen_through.main_loader) is not None
