"""Conversions are recognised in real datasets, each by its own name, with code that does without.

Real loaders, really watched; only the pace of sampling is raised, so that a second will do.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from loaderdoctor.advice.ideas import FORMAT_CHANGES
from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.attribution.workers import worker_facts
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot, WorkerFacts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.line_names import FORMATS, MIN_STACK_SAMPLES, conversion
from loaderdoctor.findings.rules.batch_making import dataset_format_bound
from loaderdoctor.instrument.dataset.dataset_code import normalisation, stores
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.instrument.wire.worker_records import read
from loaderdoctor.instrument.workers import worker, worker_sampling
from tests.findings import format_cases as cases
from tests.findings.builders import loader, with_exposed, workers

LINE = "train_loader = DataLoader(train_set, batch_size=16, shuffle=True)"
MAX_WATCHED_S = 60.0
READ_EVERY_NS = 300_000_000


def watched(
    dataset: Any,
    records: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    enough: int = 2 * MIN_STACK_SAMPLES,
) -> WorkerFacts:
    """What is recorded of a loader without workers over `dataset`, in epochs until it suffices."""
    monkeypatch.setattr(worker_sampling, "INTERVAL_S", 0.001)
    monkeypatch.setattr(worker_sampling, "MAX_SAMPLING_SHARE", 0.4)
    monkeypatch.setattr(worker_sampling, "REPORT_EVERY_NS", 1)
    # At the default of 5 ms a whole batch passes before the interpreter must change threads: the
    # sampler then only ever meets the loop where torch.stack lets go of it by itself.
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    began = time.perf_counter_ns()
    worker.install(records)
    try:
        source: DataLoader[Any] = DataLoader(dataset, batch_size=16)
        facts = None
        while facts is None or _seen_fetching(facts) < enough:
            assert time.perf_counter_ns() - began < MAX_WATCHED_S * 1e9, facts
            until = time.perf_counter_ns() + READ_EVERY_NS
            while time.perf_counter_ns() < until:  # most of the time is to be the loader's
                for _ in source:
                    pass
            worker.flush()
            facts = worker_facts(read(records), began, time.perf_counter_ns(), n_steps=1)
    finally:
        worker.remove()
        sys.setswitchinterval(switch_interval_s)
    return facts


def _seen_fetching(facts: WorkerFacts) -> int:
    """Stack samples in `__getitem__`, where all these datasets convert; collate has its own."""
    return max((x.of_stack_samples for x in facts.lines if x.phase == "fetch"), default=0)


def starved(dataset: Any, seen: WorkerFacts) -> Facts:
    """A run that waits for such a dataset 70 % of its step."""
    record = loader(
        settings={"num_workers": 0, "prefetch_factor": None, "pin_memory": False},
        code=LINE,
        stores=stores(dataset),
        normalisation=normalisation(dataset),
        batch=in_batch(dataset),
    )
    return with_exposed(
        input_=0.7, loaders=(record,), workers=replace(workers(n_workers=0), lines=seen.lines)
    )


def in_batch(dataset: Any) -> tuple[TensorRecord, ...]:
    """The tensors of a batch, as the loop receives them."""
    batch = next(iter(DataLoader(dataset, batch_size=16)))
    return tuple(
        TensorRecord(
            path=f"[{i}]",
            shape=tuple(x.shape),
            dtype=str(x.dtype).removeprefix("torch."),
            n_bytes=x.nbytes,
        )
        for i, x in enumerate(batch)
    )


def found(
    dataset: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    enough: int = 2 * MIN_STACK_SAMPLES,
) -> Finding | None:
    seen = watched(dataset, tmp_path / "records", monkeypatch, enough=enough)
    return dataset_format_bound(starved(dataset, seen))


CONVERTING: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "python-lists": (lambda _: cases.OfLists(), ("Python lists", "(rows: list of 8000 float)")),
    "text": (lambda _: cases.OfText(), ("parsing text", "(lines: str)")),
    "pandas-rows": (lambda _: cases.OfFrame(), ("pandas frame", "(frame: 9 each)")),
    "pil-round-trip": (lambda _: cases.OfImages(), ("through PIL", "(data: uint8, 28 x 28 each)")),
    "h5py": (lambda folder: cases.OfHdf5(folder / "x.h5"), ("(images: float32, 16 each)",)),
    "arrow": (lambda _: cases.OfArrow(), ("Arrow values", "(table: 2 each)")),
}  # fmt: skip
NEEDS = {"pandas-rows": "pandas", "h5py": "h5py", "arrow": "pyarrow"}


def test_every_format_has_a_case_here() -> None:
    assert {f.name for f in FORMATS} == set(CONVERTING)


@pytest.mark.parametrize("name", CONVERTING)
def test_a_conversion_is_recognised_by_what_was_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    make, says = CONVERTING[name]
    dataset = make(tmp_path)
    # Half of a sample's cost is the conversion, in two lines: few samples would not bear a name.
    enough = (6 if name in ("pil-round-trip", "pandas-rows") else 2) * MIN_STACK_SAMPLES
    finding = found(dataset, tmp_path, monkeypatch, enough=enough)
    assert finding is not None
    assert finding.evidence["format"] == name
    for text in says:
        assert text in finding.summary
    others = [f.what for f in FORMATS if f.name != name]
    assert not any(what in finding.summary for what in others)
    assert "format_cases.py" in finding.summary  # the dataset's own line, not the library's


@pytest.mark.parametrize("make", [lambda f: cases.Decoding(f), lambda _: cases.OfArrays()])
def test_decoding_and_arithmetic_are_no_conversions(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(make(tmp_path), tmp_path, monkeypatch) is None


def test_samples_of_another_formats_lists_do_not_outweigh_what_takes_most() -> None:
    """pandas keeps its labels in Arrow: some samples fall there, some on lists made of them."""
    line = hotspot(90, code='row = self.frame.iloc[index]["x"]')
    arrow = hotspot(2, code="names = index.to_pylist()")
    lists = hotspot(1, code="x = torch.tensor(list(row))")
    for lines in ([line, arrow, lists], [line, lists]):
        most = conversion(lines, loader())
        assert most is not None
        assert most.format.name == "pandas-rows"
    # Of the two alone, lists are a part of reading the Arrow values.
    both = conversion([arrow, lists], loader())
    assert both is not None
    assert (both.format.name, len(both.hotspots)) == ("arrow", 2)


def hotspot(n_stack_samples: int, *, code: str) -> LineHotspot:
    return LineHotspot(
        phase="fetch",
        file="train.py",
        line=3,
        function="Rows.__getitem__",
        code=code,
        n_stack_samples=n_stack_samples,
        of_stack_samples=100,
        phase_share=1.0,
    )


def advised(name: str, dataset: Any) -> str:
    """The code to copy for such a finding, as the report shows it."""
    facts = starved(dataset, workers(n_workers=0))
    finding = Finding(
        kind=Kind.DATASET_FORMAT_BOUND,
        severity=Severity.HIGH,
        share=0.5,
        summary="",
        evidence={"format": name},
    )
    (advice,) = code_advice(facts, [finding])
    assert advice.code is not None
    return advice.code


@pytest.mark.parametrize("make", [cases.OfImages, cases.OfColours])
def test_batches_from_the_array_are_those_that_went_through_pil(
    make: Callable[[], Any],
) -> None:
    dataset = make()
    example = advised("pil-round-trip", dataset)
    assert f"- {LINE}" in example
    assert "+ train_loader = DataLoader(Batches(train_set)" in example
    new = written(example, train_set=dataset)["train_loader"]
    assert type(new.sampler).__name__ == "RandomSampler"
    in_order = DataLoader(new.dataset, batch_size=new.batch_size, collate_fn=new.collate_fn)
    n = 0
    for (x, y), (x_old, y_old) in zip(in_order, DataLoader(dataset, batch_size=16), strict=True):
        assert x.shape == x_old.shape
        torch.testing.assert_close(x, x_old)
        assert torch.equal(y, y_old)
        n += 1
    assert n == 4
    one, label = new.dataset[5]
    torch.testing.assert_close(one, dataset[5][0])
    assert int(label) == dataset[5][1]


def written(example: str, **names: Any) -> dict[str, Any]:
    """What the example makes, its diff applied: lines taken out left out, those put in kept."""
    lines = [line for line in example.splitlines() if not line.startswith("- ")]
    code = "\n".join(line.removeprefix("+ ") for line in lines)
    scope: dict[str, Any] = {"torch": torch, "DataLoader": DataLoader, "numpy": numpy, **names}
    exec(code, scope)  # ours, from the package
    return scope


def same_samples(new: Any, old: Any) -> None:
    for i in (0, 7, cases.N - 1):
        torch.testing.assert_close(new[i][0], old[i][0])
        assert int(new[i][1]) == old[i][1]


def test_rows_of_one_tensor_are_those_of_the_lists() -> None:
    old = cases.OfLists()
    scope = written(
        FORMAT_CHANGES["python-lists"].example, rows=old.rows, labels=old.labels, index=3
    )
    same_samples(scope["loader"].dataset, old)
    assert scope["row"].tolist() == old.rows[3]


def test_columns_are_those_of_the_frame() -> None:
    pytest.importorskip("pandas")
    old = cases.OfFrame()
    names = {"frame": old.frame, "features": [f"c{k}" for k in range(8)], "label": "label"}
    same_samples(written(FORMAT_CHANGES["pandas-rows"].example, **names)["loader"].dataset, old)


def test_batches_read_at_once_are_those_of_the_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    old = cases.OfHdf5(tmp_path / "x.h5")
    path = tmp_path / "x.h5"
    example = FORMAT_CHANGES["h5py"].example
    scope = written(example, h5py=h5py, path=path, TensorDataset=TensorDataset)
    same_samples(scope["loader"].dataset, old)
    x, y = scope["Rows"](path).__getitems__([9, 2, 30])
    assert y.tolist() == [9, 2, 30]
    assert torch.equal(x, torch.stack([old[i][0] for i in (9, 2, 30)]))


def test_arrow_columns_are_the_table() -> None:
    pytest.importorskip("pyarrow")
    old = cases.OfArrow()
    scope = written(FORMAT_CHANGES["arrow"].example, table=old.table, TensorDataset=TensorDataset)
    for i in (0, 7):
        assert scope["loader"].dataset[i][0].tolist() == old[i][0].tolist()


def test_parsed_rows_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = cases.OfText()
    parse: Any = lambda line: __import__("json").loads(line)[:8]  # noqa: E731  # as in __getitem__
    scope = written(FORMAT_CHANGES["text"].example, lines=old.lines, parse=parse, index=7)
    torch.testing.assert_close(scope["sample"], old[7][0])


def test_each_format_has_a_change_of_code_that_compiles() -> None:
    assert [form.name for form in FORMATS] == list(FORMAT_CHANGES)
    for name, change in FORMAT_CHANGES.items():
        compile(textwrap.dedent(change.example), name, "exec")
