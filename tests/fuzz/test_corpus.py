"""Inputs that failed once (found by benchmarks/fuzz.py, made smaller), and a few new ones."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaderdoctor.report.model import Report
from tests.fuzz import made, seeds, subject, targets
from tests.fuzz.mutate import Mutator
from tests.fuzz.words import OTHERS

CORPUS = Path(__file__).parent / "corpus"
CASES = ("pageable_big_copy", "respawn_each_epoch")
SEED_BYTES = 12_000
# `written` takes half a second: it has a test of its own (test_written.py).
OTHER_KINDS = [kind for kind in targets.SHARES if kind not in ("trace", "written")]


@pytest.fixture(scope="session")
def cuts() -> list[bytes]:
    """Two real traces, cut to a few kilobytes."""
    paths = [seeds.TRACES / f"{name}.pt.trace.json.gz" for name in CASES]
    return [seeds.cut(path, SEED_BYTES) for path in paths]


@pytest.fixture(scope="session")
def sound_inputs(cuts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> targets.Maker:
    """Makes inputs of every kind, of two small traces."""
    mutator = Mutator(random.Random(), cuts, large=False)
    return targets.maker(mutator, tmp_path_factory.mktemp("sound"), cuts)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def reported(data: bytes, place: Path) -> Report | str | None:
    """What `analyze` makes of a trace; raises AssertionError where that is not sound."""
    path = place / "run.json"
    path.write_bytes(data)
    return subject.analyzed(path)


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.*")), ids=lambda path: path.stem)
def test_an_input_that_failed_once_is_refused_or_reported(path: Path, place: Path) -> None:
    targets.judge(path.parent.name, path.read_bytes(), place)


def test_the_cuts_hold_what_decides_a_report(cuts: list[bytes], place: Path) -> None:
    for text in cuts:
        assert len(text) <= SEED_BYTES
        report = reported(text, place)
        assert isinstance(report, Report)
        assert report.step.count >= 5
        assert report.verdict.bound != "unknown"
        assert report.shares is not None
        assert report.shares.input is not None
        cats = {event.get("cat") for event in json.loads(text)["traceEvents"]}
        assert {"kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"} <= cats


def test_made_seeds_hold_the_kinds_that_recorded_traces_lack(place: Path) -> None:
    found = made.made()
    bounds, cats = {}, set()
    for name, text in found.items():
        report = reported(text, place)
        assert isinstance(report, Report)
        bounds[name] = report.verdict.bound
        assert report.shares is not None
        assert report.shares.communication is not None
        assert (report.shares.communication > 0) == (name not in ("cpu", "frames"))
        assert (report.shares.copy is not None) == (name in ("nccl", "rocm", "xpu"))
        cats |= {event.get("cat") for event in json.loads(text)["traceEvents"]}
    assert set(bounds.values()) == {"input"}  # 300 of each 1000 us
    assert {"python_function", "dataloader_worker", "cpu_instant_event", "xpu_runtime"} <= cats


def test_sound_files_of_the_other_kinds_are_read(sound_inputs: targets.Maker, place: Path) -> None:
    for kind, data in sound_inputs.sound.items():
        assert targets.judge(kind, data, place) == "reported"


@pytest.mark.parametrize("data", OTHERS, ids=range(len(OTHERS)))
def test_files_of_other_programs_are_refused_or_reported(data: bytes, place: Path) -> None:
    found = reported(data, place)
    assert isinstance(reported(gzip.compress(data), place), type(found))


@settings(
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_mutated_traces_are_refused_or_reported(seed: int, cuts: list[bytes], place: Path) -> None:
    rng = random.Random(seed)
    mutator = Mutator(rng, cuts, large=False, max_bytes=200_000)
    reported(mutator.mutate(rng.choice(cuts)), place)


@settings(max_examples=90, database=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(OTHER_KINDS))
def test_mutated_input_of_every_other_kind_is_refused_or_read(
    seed: int, kind: targets.Kind, sound_inputs: targets.Maker, place: Path
) -> None:
    sound_inputs.mutator.rng.seed(seed)
    targets.judge(kind, sound_inputs.make(kind), place)


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
    report = reported(text.encode(), place)
    assert isinstance(report, Report)
