"""Inputs that failed once (found by benchmarks/fuzz.py, made smaller), and a few new ones."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaderdoctor.report.model import Report
from tests.fuzz import binary, seeds, sound, subject
from tests.fuzz.mutate import OTHERS, Mutator

CORPUS = Path(__file__).parent / "corpus"
CASES = ("pageable_big_copy", "respawn_each_epoch")
SEED_BYTES = 12_000


@pytest.fixture(scope="session")
def cuts() -> list[bytes]:
    """Two real traces, cut to a few kilobytes."""
    paths = [seeds.TRACES / f"{name}.pt.trace.json.gz" for name in CASES]
    return [seeds.cut(path, SEED_BYTES) for path in paths]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def judged(kind: str, data: bytes, place: Path) -> Report | str | None:
    """What the program makes of an input; raises AssertionError where that is not sound."""
    folder = place / kind
    folder.mkdir(exist_ok=True)
    if kind == "trace":
        path = folder / "run.json"
        path.write_bytes(data)
        return subject.analyzed(path)
    if kind == "report":
        (folder / "sound").mkdir(exist_ok=True)
        path = folder / "report.json"
        path.write_bytes(data)
        return subject.compared(path, sound.report(folder / "sound"))
    name = {"records": "worker-7-1.rec", "samples": "samples.npz"}[kind]
    (folder / name).write_bytes(data)
    return subject.records(folder) if kind == "records" else subject.resumed(folder)


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.*")), ids=lambda path: path.stem)
def test_an_input_that_failed_once_is_refused_or_reported(path: Path, place: Path) -> None:
    judged(path.parent.name, path.read_bytes(), place)


def test_the_cuts_hold_what_decides_a_report(cuts: list[bytes], place: Path) -> None:
    for text in cuts:
        assert len(text) <= SEED_BYTES
        report = judged("trace", text, place)
        assert isinstance(report, Report)
        assert report.step.count >= 2
        assert report.shares is not None
        assert report.shares.input is not None
        cats = {event.get("cat") for event in json.loads(text)["traceEvents"]}
        assert {"kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"} <= cats


def test_sound_files_of_the_other_kinds_are_read(place: Path) -> None:
    for kind, make in (
        ("report", sound.report),
        ("records", sound.records),
        ("samples", sound.samples),
    ):
        folder = place / f"sound-{kind}"
        folder.mkdir()
        assert judged(kind, make(folder).read_bytes(), place) is None
        shutil.rmtree(folder)


@pytest.mark.parametrize("data", OTHERS, ids=range(len(OTHERS)))
def test_files_of_other_programs_are_refused_or_reported(data: bytes, place: Path) -> None:
    found = judged("trace", data, place)
    assert isinstance(judged("trace", gzip.compress(data), place), type(found))


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_mutated_traces_are_refused_or_reported(seed: int, cuts: list[bytes], place: Path) -> None:
    rng = random.Random(seed)
    mutator = Mutator(rng, cuts, large=False, max_bytes=200_000)
    judged("trace", mutator.mutate(rng.choice(cuts)), place)


@settings(max_examples=60, deadline=None, database=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(("report", "records", "samples")))
def test_mutated_files_of_our_own_are_refused_or_read(seed: int, kind: str, place: Path) -> None:
    folder = place / f"made-{kind}"
    if not folder.exists():
        folder.mkdir()
        {"report": sound.report, "records": sound.records, "samples": sound.samples}[kind](folder)
    (path,) = folder.iterdir()
    mutator = Mutator(random.Random(seed), (), large=False)
    mutate = {
        "report": binary.mutate_json,
        "records": binary.mutate_records,
        "samples": binary.mutate_samples,
    }
    judged(kind, mutate[kind](path.read_bytes(), mutator), place)


@pytest.mark.parametrize("name", ["x", "[", "\u202e", "\x1b[31m", "<b>", "é"])
def test_a_name_of_ten_million_characters_reaches_nobody_whole(
    name: str, cuts: list[bytes], place: Path
) -> None:
    document = json.loads(cuts[0])
    long = name * (10_000_000 // len(name))
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["name"] = "mark"
    text = json.dumps(document, ensure_ascii=False).replace(
        '"mark"', json.dumps(long, ensure_ascii=False), 1
    )
    report = judged("trace", text.encode(), place)
    assert isinstance(report, Report)
