"""Trials, machines and ranks as rows of figures, in columns that terminal, page and charts share.

Machines unlike each other stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from loaderdoctor import format as fmt
from loaderdoctor.report.model import Cluster, Group, Rank, Report, Shares, Trial
from loaderdoctor.setting_words import phrase
from loaderdoctor.settings import AXES_BY_NAME, Settings

UNCLEAR = "unclear"


def by_speed(trial: Trial) -> tuple[bool, float]:
    """Key that sorts trials fastest first, those that are not known to be fast last."""
    return not is_clear(trial), trial.compared_ms or float("inf")


# A kind of machines (None: all are alike), the step (ms) of the loop's own settings there, and its
# trials by number.
Kind = tuple[str | None, float | None, list[tuple[int, Trial]]]


def ran_by_kind(report: Report) -> list[Kind]:
    """Trials that ran, fastest first, each kind of machines by itself."""
    kinds = []
    for name, base_ms, members in report.by_hardware:
        ran = [(i, report.trials[i]) for i in members if report.trials[i].status == "ok"]
        kinds.append((name, base_ms, sorted(ran, key=lambda item: by_speed(item[1]))))
    return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNames:
    """What tells trials apart: each by what it changes; what all of them change is said once."""

    shared: str | None
    names: tuple[str, ...]  # of every trial of the report, in its order


def trial_names(report: Report) -> TrialNames:
    """Settings as differences from the loop's own, which are the first trial.

    A trial with a name of its own (a published row, a change of code) keeps it.
    """
    trials = report.trials
    if not trials or trials[0].row is not None:
        return TrialNames(shared=None, names=tuple(trial.label for trial in trials))
    own = _known(trials[0])
    differ = [{k: v for k, v in _known(t).items() if own.get(k) != v} for t in trials]
    # One trial shares all it has with itself, and its settings are what it is called.
    shared = dict(differ[1].items() if len(trials) > 2 else ())
    for changed in differ[2:]:
        shared = {k: v for k, v in shared.items() if changed.get(k) == v}
    names = [_own_name(trials[0], own)]
    for trial, changed in zip(trials[1:], differ[1:], strict=True):
        left = {k: v for k, v in changed.items() if k not in shared}
        said = _listed(left) or ("only these" if shared else "as is")
        names.append(_renamed(trial, said))
    return TrialNames(shared=_listed(shared) or None, names=tuple(names))


def shared_sentence(names: TrialNames) -> str | None:
    """What every trial but the loop as it is has in common."""
    return f"Each but the loop as it is: {names.shared}." if names.shared is not None else None


def _known(trial: Trial) -> dict[str, Any]:
    return {k: v for k, v in trial.settings.items() if v is not None and k in AXES_BY_NAME}


def _listed(settings: Mapping[str, Any]) -> str:
    said = (phrase(name, value) for name, value in settings.items())
    return ", ".join(text for text in said if text)


def _own_name(trial: Trial, own: Mapping[str, Any]) -> str:
    workers = own.get("num_workers")
    return _renamed(trial, f"as is (num_workers={workers})" if workers is not None else "as is")


def _renamed(trial: Trial, said: str) -> str:
    """That name, with the marks of the trial's label; the label itself where that is a name."""
    plainly = Settings(**_known(trial)).label()
    if not trial.label.startswith(plainly):
        return trial.label
    return said + trial.label.removeprefix(plainly)


def trial_mark(report: Report, index: int) -> tuple[str, str]:
    """The word for a trial's row (best, advised, tied, yours), and the style that repeats it."""
    best = report.best
    words = []
    if best is not None and index == best.trial:
        words.append(best_word(report))
    elif best is not None and index in best.tied_with:
        words.append("tied")
    if index == 0 and report.command == "sweep":
        words.append("yours")
    chosen = best is not None and index == best.trial
    style = "bold green" if chosen else "green" if "tied" in words else ""
    return ", ".join(words), style


def best_word(report: Report) -> str:
    """`best`; `advised` of what is recommended though another row is faster."""
    if report.best is None or not 0 <= report.best.trial < len(report.trials):  # anyone's file
        return "best"
    chosen = report.trials[report.best.trial]
    faster = any(
        t.compared_ms is not None
        and chosen.compared_ms is not None
        and t.compared_ms < chosen.compared_ms
        for t in report.trials
        if t.status == "ok" and (t.hardware, t.group) == (chosen.hardware, chosen.group)
    )
    return "advised" if faster and report.recommendations else "best"


# A trial and the step time of the loop's own settings (ms) -> a cell.
ReadCell = Callable[[Trial, float | None], str]


class TrialColumn(NamedTuple):
    """`read` makes a cell. `rank` 0: no table goes without it; else the highest goes first."""

    heading: str
    read: ReadCell
    rank: int = 0


def trial_columns(trials: Sequence[Trial]) -> list[TrialColumn]:
    """What is known of trials; a column that no trial has a figure for is left out."""
    columns = [
        TrialColumn("ms a step", lambda t, _: step_cell(t)),
        TrialColumn("speed", _speed),
        TrialColumn("samples/s", lambda t, _: _number(t.samples_per_s if is_clear(t) else None)),
        TrialColumn("epoch", lambda t, _: _seconds(t.epoch_s), rank=1),
        TrialColumn("start-up", lambda t, _: _seconds(t.startup_s), rank=8),
        *(
            TrialColumn(f"{name} %", _share_reader(name), rank)
            for name, rank in (("input", 4), ("copy", 6), ("host", 7), ("compute", 5))
        ),
        TrialColumn("GPU memory", lambda t, _: _bytes(t.gpu_peak_allocated_bytes), rank=2),
        TrialColumn("reserved", lambda t, _: _bytes(t.gpu_peak_reserved_bytes), rank=9),
        TrialColumn("host memory", lambda t, _: _bytes(t.host_bytes), rank=3),
        TrialColumn("workers' own", _of_workers, rank=10),
    ]
    return [c for c in columns if any(c.read(t, 1.0) not in ("", "–") for t in trials)]


def _of_workers(trial: Trial, _: float | None) -> str:
    """`182 MiB of 1.20 GiB`: what they have to themselves, and what they may come to."""
    seen, forecast = trial.workers_bytes, trial.workers_forecast_bytes
    if seen is None:
        return "–"
    return _bytes(seen) if forecast is None else f"{_bytes(seen)} of {_bytes(forecast)}"


def _share_reader(name: str) -> ReadCell:
    return lambda trial, _: fmt.bare_share(_share(trial.shares, name))


def _seconds(value: float | None) -> str:
    return fmt.seconds(value) if value else "–"


def step_cell(trial: Trial) -> str:
    """`25 ± 8` in milliseconds, `217 once` of one window, or that it is not known well."""
    if not is_clear(trial):
        return UNCLEAR
    once = " once" if trial.n_windows == 1 and trial.step_ms_ci is None else ""
    return fmt.ms(trial.step_ms, trial.step_ms_ci).removesuffix(" ms") + once


def is_clear(trial: Trial) -> bool:
    """Whether its windows agree well enough to be a figure at all."""
    return fmt.is_measured_well(trial.step_ms, trial.step_ms_ci)


def table_key(trials: Iterable[Trial]) -> str | None:
    """What `unclear`, `once` and `speed` mean, where a row has them."""
    seen = [t for t in trials if t.status == "ok"]
    words = []
    unclear = [t for t in seen if not is_clear(t)]
    if unclear:
        windows = [ms for t in unclear for ms in t.window_ms]
        spread = f" ({fmt.number(min(windows))} to {fmt.ms(max(windows))})" if windows else ""
        words.append(f"{UNCLEAR}: its windows are too few, or too unlike, for a figure")
        words[-1] += spread
    if any(step_cell(t).endswith(" once") for t in seen):
        words.append("once: one window, so no ±")
    if any(_paired(t) for t in seen):
        words.append("speed: against the loop as it is in the same rounds")
    return "; ".join(words) + "." if words else None


def _speed(trial: Trial, base: float | None) -> str:
    if base is None or not trial.compared_ms or not is_clear(trial):
        return ""
    if _paired(trial) and trial.gain_ms is not None:
        base = trial.compared_ms + trial.gain_ms
    return fmt.ratio(base / trial.compared_ms)


def _paired(trial: Trial) -> bool:
    """Whether its gain is known round by round, as of `diagnose`: what the advice says too.

    A machine that slows down meanwhile slows the trial and the loop next to it, not the loop's mean
    over the whole run. A sweep's trials are all measured throughout.
    """
    return trial.gain_ms is not None and trial.gain_confirmed is None


def _share(shares: Shares | None, name: str) -> float | None:
    return getattr(shares, name) if shares is not None else None


def _number(value: float | None) -> str:
    return "–" if value is None else fmt.number(value)


def _bytes(value: int | None) -> str:
    return "–" if value is None else fmt.n_bytes(value)


MACHINE_HEADINGS = ("machine", "measured", "own settings", "what happened")


def group_rows(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """A row for each group of trials, in the order they were made; "" where nothing is known."""
    several = len(cluster.hardware) > 1
    return tuple(
        (
            _where(group, several=several),
            f"{'confirmed' if group.purpose == 'confirm' else 'trials'} "
            f"{', '.join(map(str, group.trials))}",
            f"own settings {fmt.ms(group.baseline_ms)}" if group.baseline_ms is not None else "",
            _happened(group),
        )
        for group in cluster.groups
    )


def hardware_lines(cluster: Cluster) -> tuple[str, ...]:
    """What each kind of machine is made of."""
    several = len(cluster.hardware) > 1
    return tuple(
        f"{f'Hardware {kind.name}: ' if several else ''}{kind.usable_cpus:g} CPUs "
        f"({kind.cpu or 'not known'}), {fmt.n_bytes(kind.memory_bytes)}, "
        f"{' + '.join(kind.gpus) or 'no GPU'}, torch {kind.torch or 'not known'}"
        for kind in cluster.hardware
    )


def _where(group: Group, *, several: bool) -> str:
    kind = f" (hardware {group.hardware})" if several and group.hardware else ""
    return f"{group.node or 'no machine'}{kind}"


def _happened(group: Group) -> str:
    parts = []
    if group.n_lost:
        parts.append(f"begun again {fmt.count(group.n_lost, 'time')}")
    if group.status != "ok":
        parts.append(f"{group.status}{f': {group.reason}' if group.reason else ''}")
    return ", ".join(parts)


# A terminal shows so many; report.json holds them all.
MAX_SHOWN = 16
_PARTS = {
    "input": "input",
    "copy": "copy",
    "compute": "compute",
    "communication": "comm.",
    "host": "host",
}
RANKS_KEY = "ms a step; waits: for later ranks, in collectives; comm.: communication"


def outliers_first(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks whose own time is farthest from the median first; equal ones by number."""
    known = [r.own_ms for r in ranks if r.own_ms is not None]
    middle = median(known) if known else 0.0

    def distance(rank: Rank) -> float:
        return -abs(rank.own_ms - middle) if rank.own_ms is not None else 0.0

    return sorted(ranks, key=lambda r: (distance(r), r.rank))


# A heading and how its cell is read from a rank.
RankColumn = tuple[str, Callable[[Rank], str]]


def rank_columns(ranks: Sequence[Rank]) -> list[RankColumn]:
    """Columns for these ranks, in milliseconds a step; parts that nobody has are left out."""
    columns: list[RankColumn] = [("rank", lambda r: str(r.rank))]
    if len({r.host for r in ranks}) > 1:
        columns.append(("machine", lambda r: fmt.plain(r.host)))
    columns.append(("step", lambda r: _figure(r.step.wall_ms)))
    if any(r.peer_wait_ms is not None for r in ranks):
        columns.append(("waits", lambda r: _figure(r.peer_wait_ms)))
    return columns + [
        (heading, _part(name))
        for name, heading in _PARTS.items()
        if any(_part_ms(r, name) is not None for r in ranks)
    ]


def _part(name: str) -> Callable[[Rank], str]:
    return lambda rank: _figure(_part_ms(rank, name))


def _part_ms(rank: Rank, name: str) -> float | None:
    if rank.shares is None or rank.own_ms is None:
        return None
    share: float | None = getattr(rank.shares, name)
    return None if share is None else share * rank.own_ms


def _figure(value_ms: float | None) -> str:
    return "–" if value_ms is None else fmt.ms(value_ms).removesuffix(" ms")
