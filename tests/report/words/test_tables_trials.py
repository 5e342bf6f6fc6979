"""Trials of unlike machines in every view: apart, each beside its own baseline."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.report import RunFolder, decode_report, encode_report
from loaderdoctor.report.charts.figures import HtmlExtras
from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import write_html
from loaderdoctor.report.model import Cluster, Group, Hardware, Report
from loaderdoctor.report.words.tables import trial_mark, trial_names
from tests.report import samples


def on_two_kinds() -> Report:
    """The sample sweep with its last trial on a machine on which all takes a tenth."""
    report = samples.sweep()
    last = max(i for i, trial in enumerate(report.trials) if trial.status == "ok")
    trials = [
        msgspec.structs.replace(
            trial, node="b" if i == last else "a", hardware="B" if i == last else "A"
        )
        for i, trial in enumerate(report.trials)
    ]
    trials[last] = msgspec.structs.replace(trials[last], step_ms=1.0, cost_ms=1.0, step_ms_ci=None)
    kinds = [
        Hardware(
            name=name,
            cpu=cpu,
            usable_cpus=8.0,
            memory_bytes=2**35,
            gpus=(),
            torch="2.14.1",
            trials=tuple(i for i, t in enumerate(trials) if t.hardware == name and i),
            baseline_ms=baseline_ms,
        )
        for name, cpu, baseline_ms in (("A", "EPYC", trials[0].step_ms), ("B", "Xeon", 2.0))
    ]
    groups = (
        Group(
            node="b",
            hardware="B",
            purpose="rank",
            trials=(last,),
            status="ok",
            baseline_ms=2.0,
            n_lost=1,
        ),
        Group(
            node=None, hardware=None, purpose="rank", trials=(4,), status="failed", reason="gone"
        ),
    )
    return msgspec.structs.replace(
        report, trials=tuple(trials), cluster=Cluster(hardware=tuple(kinds), groups=groups)
    )


def test_the_console_gives_each_kind_a_table_and_its_own_baseline() -> None:
    report = on_two_kinds()
    text = console_text(report, width=160)
    before, after = text.split("Hardware B, own settings 2.00 ms")
    assert "Hardware A" in before
    assert report.trials[report.by_hardware[1][2][0]].label.startswith("num_workers=15")
    assert "num_workers=15" in after
    assert "2.0×" in after  # against 2.0 ms there, not against the loop on the other machine
    assert "num_workers=15" not in before[before.index("Hardware A") :]


def test_the_console_says_where_each_group_was_measured_and_what_was_lost() -> None:
    text = console_text(on_two_kinds(), width=160)
    part = text[text.index("Machines") :]
    assert "b (hardware B): trials 3, own settings 2.00 ms, begun again 1 time\n" in part
    assert "no machine: trials 4, failed: gone" in part
    assert f"Hardware B: 8 CPUs (Xeon), {fmt.n_bytes(2**35)}, no GPU, torch 2.14.1" in part


def test_alike_machines_have_one_table_as_one_machine_has() -> None:
    report = samples.sweep()
    ((kind, base, members),) = report.by_hardware
    assert kind is None
    assert base == report.trials[0].compared_ms
    assert members == tuple(range(len(report.trials)))
    assert "Hardware" not in console_text(report)


def test_kinds_survive_the_file() -> None:
    report = on_two_kinds()
    assert decode_report(encode_report(report), source=Path("report.json")) == report
    assert b'"cluster": null' in encode_report(samples.sweep())


def test_the_page_does_not_rank_across_kinds(tmp_path: Path) -> None:
    report = on_two_kinds()
    folder = RunFolder.create("job", output=tmp_path / "run", at=0.0)
    write_html(report, folder, HtmlExtras(made_at=0.0))
    page = (tmp_path / "run" / "report.html").read_text()
    rows = page[page.index("Trials") :]
    names = trial_names(report).names
    label = names[report.by_hardware[1][2][0]]
    others = [names[i] for i in report.by_hardware[0][2] if report.trials[i].status == "ok"]
    machines = page[page.index('id="machines"') :]
    assert "b (hardware B)" in machines
    assert "Hardware B: 8 CPUs (Xeon)" in machines
    assert "failed: gone" in machines
    # The fastest by the clock comes last: it is of another kind.
    assert rows.index(f">{label}") > max(rows.index(f">{one}") for one in others if one != label)


def test_what_is_advised_though_another_is_faster_is_not_called_best() -> None:
    report = samples.sweep()
    assert report.best is not None and report.recommendations
    assert trial_mark(report, report.best.trial)[0] == "best"
    trials = list(report.trials)
    trials[3] = msgspec.structs.replace(trials[3], step_ms=1.0, cost_ms=1.0)
    faster = msgspec.structs.replace(report, trials=tuple(trials))
    assert trial_mark(faster, report.best.trial)[0] == "advised"
    assert "(advised)" in console_text(faster) and "(best)" not in console_text(faster)
    nothing = msgspec.structs.replace(faster, recommendations=())
    assert trial_mark(nothing, report.best.trial)[0] == "best"
