"""What a run folder keeps of its proofs, and how `report` says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderdoctor.commands.report import report
from loaderdoctor.errors import UsageError
from loaderdoctor.proving import Promise
from loaderdoctor.proving.record import PROOFS, keep, kept_proofs, record
from tests.proving.test_judge import proved

GOLDEN = Path(__file__).parents[1] / "report" / "golden" / "input_bound.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "report.json").write_bytes(GOLDEN.read_bytes())
    return tmp_path


def test_report_says_what_was_promised_and_what_was_got(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(run)
    assert "Proven" not in capsys.readouterr().out
    good = proved([10.0, 10.0, 10.0], [5.0, 5.0, 5.0])
    keep(run, record(good, changes="num_workers=3 (now 0)", promise=Promise(times=2.1)))
    bad = proved([10.0, 10.0, 10.0], [9.0, 9.0, 9.0])
    keep(run, record(bad, changes="cache", promise=Promise(times=4.0)))
    report(run)
    out = capsys.readouterr().out
    assert (
        "Proven: num_workers=3 (now 0): promised 2.1×, got 2.0× [2.00, 2.00]; "
        "same batches, same losses\n" in out
    )
    assert "Proven: cache: promised 4.0×, got 1.11× [1.11, 1.11], not as promised;" in out


def test_an_interval_that_is_not_known_is_null_and_read_again(run: Path) -> None:
    keep(run, record(proved([10.0], [5.0]), changes="x"))
    (one,) = kept_proofs(run)
    assert one.speed_up.high is None
    assert one.sentence == "x: got 2.0×; same batches, same losses"


def test_a_torn_file_is_told(run: Path) -> None:
    (run / PROOFS).write_text("[{")
    with pytest.raises(UsageError, match="can't be read"):
        kept_proofs(run)
