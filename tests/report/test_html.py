"""report.html as text: what it says, that nothing of the user's becomes markup, its size."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from loaderdoctor import format as fmt
from loaderdoctor.commands.analyze import AnalyzeOptions, analyze
from loaderdoctor.report.charts import step_bars, workers_by_prefetch
from loaderdoctor.report.charts.figures import HtmlExtras, charts_of
from loaderdoctor.report.html import html
from loaderdoctor.report.model import Cluster, Hardware, Report
from loaderdoctor.report.words.tables import trial_names
from tests.report import html_samples, samples
from tests.report.conftest import trace_path

REPORTS = {
    name: getattr(samples, name)
    for name in (
        "input_bound", "healthy", "cpu_only", "sweep", "several_ranks", "nothing_recorded"
    )
}  # fmt: skip
# Everything the page is made of. Nothing that runs, embeds, submits or loads.
TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "header", "footer", "section",
    "article", "div", "span", "p", "h1", "h2", "h3", "ul", "ol", "li", "dl", "dt", "dd", "table",
    "thead", "tbody", "tr", "th", "td", "pre", "code", "b", "i", "em", "small", "a", "time",
    "figure", "figcaption", "details", "summary",
    "svg", "g", "defs", "path", "rect", "text", "tspan", "use", "clippath",
}  # fmt: skip
VOID = {"meta", "link"}


@dataclass
class Parsed(HTMLParser):
    """The elements of a page, and its text."""

    tags: set[str] = field(default_factory=set)
    attributes: list[tuple[str, str | None]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Parsed:
    """Raises AssertionError where elements don't nest."""
    found = Parsed()
    found.feed(page)
    found.close()
    assert not found.open
    return found


def words(page: str) -> str:
    return " ".join(" ".join(parsed(page).text).split())


@pytest.mark.parametrize("name", REPORTS)
def test_every_kind_of_report_becomes_a_page_that_says_its_verdict(name: str) -> None:
    report: Report = REPORTS[name]()
    text = words(html(report))
    assert report.verdict.summary in text
    for finding in report.findings:
        assert finding.kind in text and finding.summary in text
    for warning in report.warnings:
        assert warning.text in text
    for sentence in report.method:
        assert sentence in text


def test_the_answer_stands_before_everything_else() -> None:
    text = words(html(samples.input_bound()))
    order = ["Input-bound", "Waiting for the loader costs", "The step", "What it would be",
             "What to change", "Findings", "How it was measured", "Environment"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_a_prescription_is_a_diff_with_its_gain_and_caution() -> None:
    page = html(samples.input_bound())
    assert '<span class="del">- loader = DataLoader(train_set' in page
    assert '<span class="add">+                     num_workers=7' in page
    text = words(page)
    gain = "2.31 ± 0.09 ms a step, measured here (5.7× as fast; 1.80 ms at best, predicted"
    gain += " by ablation)"
    assert gain in text
    assert "Beware: each worker holds a copy" in text


def test_figures_of_ranks_have_their_unit_and_stand_before_the_findings() -> None:
    page = html(samples.several_ranks())
    assert "ms a step; waits: for later ranks, in collectives" in page
    assert page.index('id="ranks"') < page.index('id="findings"')


def test_every_trial_has_its_row_and_failed_ones_their_reason() -> None:
    report = samples.sweep()
    text = words(html(report))
    for trial, name in zip(report.trials, trial_names(report).names, strict=True):
        assert name in text
        assert trial.reason is None or trial.reason in text


def test_absent_figures_are_said_to_be_absent_and_never_zero() -> None:
    text = words(html(samples.nothing_recorded()))
    assert "Step time not recorded" in text
    assert "Where the step goes: not recorded" in text
    assert "not applicable (no accelerator)" in words(html(samples.cpu_only()))


@pytest.mark.parametrize("name", REPORTS)
def test_text_of_the_users_never_becomes_markup(name: str) -> None:
    report = html_samples.hostile(REPORTS[name]())
    page = parsed(html(report, html_samples.extras(html_samples.HOSTILE)))
    assert page.tags <= TAGS
    for attribute, value in page.attributes:
        assert not attribute.startswith("on"), attribute
        assert attribute != "src"
        if attribute in ("href", "xlink:href"):
            assert value is not None
            assert value == "data:," or value.startswith("#")
        if attribute == "style":
            assert value is not None
            assert "url(" not in value.replace("url(#", "") and "script" not in value
    text = "".join(page.text)
    assert fmt.plain(html_samples.HOSTILE) in text
    assert "\x1b" not in text and "\u202e" not in text


def test_what_a_sentence_quotes_is_set_as_code() -> None:
    report = samples.input_bound()
    row = msgspec.structs.replace(
        report.recommendations[0],
        idea="Run it with `--num-workers 1` and `<b>`, once.",
        caution="A lone ` stays as it is.",
    )
    page = html(msgspec.structs.replace(report, recommendations=(row,)))
    assert "Run it with <code>--num-workers 1</code> and <code>&lt;b&gt;</code>, once." in page
    assert "A lone ` stays as it is." in page


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    page = html(html_samples.many_trials(6), html_samples.extras())
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'content="{policy}"' in page
    assert "<script" not in page and "@import" not in page
    for attribute, value in parsed(page).attributes:
        if attribute.startswith("xmlns"):
            continue
        assert not (value or "").startswith(("http:", "https:", "//"))


def test_colours_come_from_the_page_and_ids_are_unique() -> None:
    page = html(html_samples.many_trials(6), html_samples.extras())
    assert "#f0a5" not in page
    ids = [value for name, value in parsed(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    charts = page[page.index("<main>") :]
    assert "fill: #" not in charts and "stroke: #" not in charts


def test_a_step_before_and_after_is_drawn_to_one_scale() -> None:
    extras = html_samples.extras()
    page = html(samples.input_bound(), extras)
    assert page.index('id="step-before"') < page.index('id="step-after"') < page.index("Findings")
    drawn = charts_of(samples.input_bound(), extras).before_after
    assert [chart.title.partition(":")[0] for chart in drawn] == ["As it is", "With num_workers=4"]
    ticks = [re.findall(r">(\d+)</text>", str(chart.wide)) for chart in drawn]
    assert ticks[0] == ticks[1]  # although the second step is a quarter of the first
    assert 'id="step-1"' in page and 'id="step-0"' not in page  # which is the first of the two
    alone = html(samples.input_bound(), replace(extras, advised=None))
    assert "before and after" not in alone and 'id="step-0"' in alone


def test_charts_are_drawn_for_wide_and_narrow_pages() -> None:
    page = html(html_samples.many_trials(8), html_samples.extras())
    assert page.count("<figure") == page.count('<div class="wide">') == 9
    assert page.count('<div class="narrow">') == page.count('<div class="wide">')
    assert "could not be drawn" not in page


def test_a_page_of_sixty_trials_stays_below_three_megabytes() -> None:
    assert len(html(html_samples.many_trials(60), html_samples.extras()).encode()) < 3_000_000


@pytest.mark.slow
def test_a_long_sweep_with_every_picture_full_stays_below_three_megabytes() -> None:
    """Irregular figures take more digits; every chart is at the limit attribution sets."""
    page = html(html_samples.long_sweep(60), html_samples.crowded())
    assert "could not be drawn" not in page
    assert page.count("<figure") >= 9
    assert len(page.encode()) < 3_000_000


def test_equal_reports_make_equal_pages() -> None:
    first, second = (html(html_samples.many_trials(5), html_samples.extras()) for _ in range(2))
    assert first == second


def test_a_failing_library_costs_its_chart_and_not_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no <fonts>")

    monkeypatch.setattr("loaderdoctor.report.charts.draw.svg_pair", fail)
    page = html(samples.sweep(), html_samples.extras())
    assert "could not be drawn (RuntimeError: no &lt;fonts&gt;)" in page
    assert "mean wait" in words(page)


@pytest.mark.slow
def test_matplotlib_settings_of_the_users_change_nothing(tmp_path: Path) -> None:
    import matplotlib as mpl

    extras = html_samples.extras()
    plain = html(samples.sweep(), extras)
    with mpl.rc_context({"text.usetex": True, "axes.grid": True, "svg.fonttype": "path"}):
        assert html(samples.sweep(), extras) == plain
        assert mpl.rcParams["text.usetex"]  # and theirs stay


def test_the_grid_takes_the_fastest_of_trials_that_share_a_cell() -> None:
    trials = [
        samples.trial("", 9.0, settings={"num_workers": 0}),
        samples.trial("", 4.0, settings={"num_workers": 2, "prefetch_factor": 2}),
        samples.trial("", 3.0, settings={"num_workers": 2, "prefetch_factor": 2}),
        samples.trial("", 5.0, settings={"num_workers": 4, "prefetch_factor": None}),
        samples.trial("", None, settings={"num_workers": 8, "prefetch_factor": 8}),
    ]
    grid = workers_by_prefetch(trials, {"prefetch_factor": 8})
    assert grid is not None
    assert (grid.workers, grid.prefetch) == ((0, 2, 4), ("no prefetch", "2", "8"))
    assert grid.step_ms == {(0, 0): 9.0, (1, 1): 3.0, (2, 2): 5.0}
    assert workers_by_prefetch(trials[:3], {}) is None


def test_analyze_writes_the_page_with_the_steps_of_the_trace(tmp_path: Path) -> None:
    options = AnalyzeOptions(traces=(trace_path("respawn_each_epoch"),), output=tmp_path / "run")
    assert analyze(options) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    text = words(page)
    assert "A typical step" in text and "The slowest step" in text
    assert "an epoch begins" in text
    assert "could not be drawn" not in text


def test_nothing_is_imported_for_the_page_before_it_is_written() -> None:
    code = (
        "import sys, loaderdoctor.commands.diagnose, loaderdoctor.commands.sweep\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_extras_are_optional() -> None:
    assert html(samples.healthy()) == html(samples.healthy(), HtmlExtras())


def test_outside_the_steps_what_if_is_said_to_be_of_the_step() -> None:
    report = samples.input_bound()
    outside = msgspec.structs.replace(
        report, verdict=msgspec.structs.replace(report.verdict, bound="outside")
    )
    assert "What the step itself would be" in words(html(outside))
    assert "What the step itself would be" not in words(html(report))


def test_steps_of_other_batch_sizes_are_drawn_for_as_many_samples() -> None:
    trials = (samples.trial("as is", 192.0), samples.trial("batch 128", 961.0, cost_ms=240.25))
    report = msgspec.structs.replace(samples.sweep(), trials=trials, best=None)
    own, larger = step_bars(report, (("as is", 0), ("batch 128", 1)))
    assert (own.value, larger.value) == (192.0, 240.25)
    assert larger.interval == pytest.approx((0.98 * 240.25, 1.02 * 240.25))
    assert larger.text.startswith("240 ")
    assert "for as many samples" in words(html(report))
    assert "for as many samples" not in words(html(samples.sweep()))


def test_outside_the_steps_what_the_verdict_speaks_of_comes_first() -> None:
    idea = samples.recommendation(
        "Give that loader workers", None, None, code="", idea="num_workers", measured_step_ms=None
    )
    report = msgspec.structs.replace(
        samples.validation_bound(), recommendations=(idea, *samples.CHANGES)
    )
    text = words(html(report))
    said = [text.index(x) for x in ("Give that loader", "For the step itself", "1 · num_workers=7")]
    assert said == sorted(said)
    assert "no line of the script is known" not in text


def test_a_claim_that_can_not_be_judged_has_its_reason() -> None:
    assert "not testable here (a row it needs was skipped)" in words(html(samples.ladder()))


def test_trials_of_unlike_machines_are_told_apart() -> None:
    report = samples.sweep()
    trials = [
        msgspec.structs.replace(t, hardware="A" if i < 3 else "B")
        for i, t in enumerate(report.trials)
    ]
    kinds = tuple(
        Hardware(
            name=name, cpu=None, usable_cpus=2.0, memory_bytes=1, gpus=(), torch=None, trials=()
        )
        for name in "AB"
    )
    cluster = Cluster(hardware=kinds, groups=())
    several = msgspec.structs.replace(report, trials=tuple(trials), cluster=cluster)
    assert "as is (num_workers=0) (hardware A)" in words(html(several))
    assert "hardware" not in words(html(report))
