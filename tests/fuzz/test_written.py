"""What `analyze --output` writes from traces that are hardly any: files, or one line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.commands.run_folder import extras_of_trace
from loaderdoctor.errors import TraceError
from loaderdoctor.report.traces import Overlay, write_perfetto_trace
from loaderdoctor.report.traces.tensorboard import write_plugin_trace
from loaderdoctor.trace import read_trace
from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator

STEP = (
    '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":1,"tid":1,"ts":%d,"dur":%d}'
)
OP = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%s,"dur":%s,"args":{"x":%s}}'
BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def written(path: Path) -> None:
    """Write both dialects and what the page shows; each must be JSON."""
    try:
        attributed = attribute(read_trace(path))
        overlay = Overlay.of(tracks(attributed))
        extras_of_trace(attributed)
        for target, write in (
            ("w.17.pt.trace.json.gz", write_plugin_trace),
            ("full.json.gz", write_perfetto_trace),
        ):
            if write is write_plugin_trace:
                write_plugin_trace(
                    path, path.parent / target, extra_waits=overlay.waits_outside_next
                )
            else:
                write_perfetto_trace(path, path.parent / target)
            json.loads(gzip.decompress((path.parent / target).read_bytes()))
    except TraceError as error:
        assert str(error).isprintable()  # noqa: PT017 - a refusal is right, and one line


@pytest.mark.parametrize(
    "events",
    [
        [STEP % (i, 5, 0) for i in range(6)],  # steps without length
        [STEP % (0, 0, 9), OP % (1, 1, 1), OP % ("1e308", "1e308", 1), OP % (2, "1e306", 1)],
        [STEP % (0, 0, 9), OP.replace('"tid":1', '"tid":[1]') % (1, 1, 1)],
        [STEP % (0, 0, 9), OP % (1, 1, "1e400")],
        [STEP % (0, 0, 9), (OP % (1, 1, "1" * 400)).replace('"a"', f'"{BATCH}"')],
        [STEP % (0, 0, 9), (OP % (1, 1, 1)).replace('"a"', '"\\ud800"')],
        [STEP % (0, 0, 9), '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":[1]}'],
    ],
    ids=[
        "empty-steps",
        "beyond-64-bits",
        "list-as-id",
        "infinity",
        "digits",
        "half-a-pair",
        "args",
    ],
)
def test_events_that_failed_once_are_written_or_refused(tmp_path: Path, events: list[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"traceEvents":[' + ",".join(events) + "]}")
    written(path)


def test_a_mark_of_the_byte_order_and_half_a_pair_are_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    names = [r"half \ud800", r"pair \ud83d\ude00", r"text \\ud800"]
    events = [STEP % (0, 0, 99)]
    events += [(OP % (i, 1, 1)).replace('"a"', f'"{name}"') for i, name in enumerate(names)]
    path.write_bytes(b"\xef\xbb\xbf" + ('{"traceEvents":[' + ",".join(events) + "]}").encode())
    assert write_plugin_trace(path, tmp_path / "w.17.pt.trace.json.gz").n_dropped == 0
    text = json.loads(gzip.decompress((tmp_path / "w.17.pt.trace.json.gz").read_bytes()))
    found = [event["name"] for event in text["traceEvents"]][1:]
    assert found == ["half \ufffd", "pair \U0001f600", "text \\ud800"]


@pytest.fixture(scope="module")
def cut() -> bytes:
    return seeds.cut(seeds.TRACES / "pageable_big_copy.pt.trace.json.gz", 8_000)


@settings(
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_mutated_traces_are_written_or_refused(seed: int, cut: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(Mutator(random.Random(seed), [cut], large=False).mutate(cut))
    written(path)
