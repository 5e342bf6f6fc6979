"""Keeps account of what the loop does outside its training steps, over the whole run.

A validation pass, a checkpoint or the work between two epochs comes once in hundreds of steps,
where a window holds dozens: so these are counted from the first step that is watched to the last,
whatever is measured meanwhile. Of their times only those count that nothing of ours changed. Runs
on the training thread; a step with nothing about it costs one look at a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns
from typing import Literal

from loaderdoctor.instrument.session.joining import JoinWatch
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord
from loaderdoctor.units import NS_PER_S

MAX_PLACES = 64  # told apart: a script that builds loaders without end is not followed
# A pass that the loop left early ended where its last batch was done: after no more than this many
# times what the longest of the batches before it took.
LAST_BATCH_TIMES = 1.5
# Training on another loader lasts so long before it is taken to go on with it, and so many times
# what was trained on the present one at a time: passes by turns come back sooner.
MIN_PHASE_S = 2.0
PHASE_TIMES = 1.5
BROKEN_OFF_TIMES = 3.0  # where the present one's epoch is not over: its loop may go on any time
# More batches of another loader in one step are a pass: the critic of a WGAN gets five for each
# step of the generator (`n_critic`, Arjovsky et al. 2017), more than what is usual elsewhere.
MAX_JOINED_BATCHES = 5

What = Literal["pass", "save"]


@dataclass(slots=True)
class _Sum:
    """Of one place, as `OutsideRecord` has it."""

    n: int = 0
    n_visits: int = 0
    first_step: int = 0
    last_step: int = -1
    n_at_epoch_end: int = 0
    n_timed: int = 0
    timed_ns: int = 0
    first_ns: int = 0
    wait_ns: int = 0
    n_batches: int = 0
    n_with_grad: int = 0
    n_worked: int = 0
    n_stepped: int = 0


@dataclass(slots=True)
class _Pass:
    """A pass over another loader that has not ended."""

    site: str
    took_ns: int = 0
    wait_ns: int = 0
    opening_ns: int = 0  # of `took_ns`, before it had a batch
    opened: bool = False  # its iterator was made since the last step
    n_batches: int = 0
    n_with_grad: int = 0
    n_worked: int = 0
    n_stepped: int = 0
    fed: bool = False  # its last batch may yet be followed by work
    steps: bool = False  # and by an optimizer's step
    body_ns: int = 0  # what the loop has done with its last batch
    longest_ns: int = 0  # the most it did with one before

    @property
    def trains(self) -> bool:
        """As far as it has come."""
        return self.n_stepped > 0 and 2 * self.n_worked > self.n_batches

    @property
    def joins(self) -> bool:
        """Whether it gave the last step a batch or a few, and has not run out."""
        few = self.n_batches <= (1 if self.opened else MAX_JOINED_BATCHES)
        return few and 0 < self.n_batches <= 2 * self.n_worked


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Passes over one other loader that trained since the step's own gave its last batch."""

    site: str
    n_worked: int
    ns: int  # from each one's first batch on, and of nothing between them


@dataclass(slots=True)
class _Sums:
    """Of crossings, or of gaps."""

    n: int = 0
    whole_ns: int = 0
    loader_ns: int = 0
    known_ns: int = 0


@dataclass(slots=True)
class _Stretch:
    """What is known of the time since the last step boundary."""

    known_ns: int = 0
    loader_ns: int = 0
    epoch_over: bool = False  # the fetch that began it found the epoch at its end
    renewed: bool = False  # the loader that feeds the step has a new iterator
    held: list[_Sum] = field(default_factory=list)  # one entry for each pass and save
    trained: list[Elsewhere] = field(default_factory=list)  # passes that are over


class WallAccount:
    """One run's.

    `undisturbed` says whether batches and pace are the loop's own, `passes_stand` whether at least
    what other loaders' passes take is what it would be.
    """

    def __init__(
        self, *, undisturbed: Callable[[], bool], passes_stand: Callable[[], bool]
    ) -> None:
        self.eventful = False  # something besides a step lies behind the last boundary
        self.began_ns = 0  # when the loop went on after the last boundary
        self.in_steps = False  # every step holds something of this
        self.step_ns = 0  # what a step takes with its own batches; 0: not known yet
        # The most that was trained on the step's loader between two epochs of others.
        self.longest_run_ns = 0
        self._run_began_ns = self._run_first_step = self._run_outside_ns = 0
        self._undisturbed, self._passes_stand = undisturbed, passes_stand
        self._sums: dict[tuple[What, str], _Sum] = {}
        self.joining = JoinWatch()
        # Loaders read right before the present step's own batch: whether their iterator is new.
        self._read_before: dict[str, bool] = {}
        self._open: list[_Pass] = []  # the outermost first
        self._current: _Pass | None = None  # whose time runs
        self._since_ns = 0  # up to here time is charged
        self._stretch = _Stretch()
        self._crossings, self._gaps = _Sums(), _Sums()
        self._n_steps = 0
        self.n_epochs = 0  # that ended so far

    # ------------------------------------------------------------ what happens

    def begin(self, now: int, n_steps: int) -> None:
        """Training on the step's loader goes on from here."""
        self._run_began_ns, self._run_first_step, self._run_outside_ns = now, n_steps, 0

    def goes_on(self, boundary_ns: int) -> None:
        """The loop goes on after a boundary at which it stood: that is no part of its training."""
        self.began_ns = perf_counter_ns()
        self._run_outside_ns += self.began_ns - boundary_ns

    def opened(self, site: str, start: int, now: int, *, n_steps: int) -> None:
        """The loop made an iterator of a loader that does not feed the step, from `start` on."""
        self._charge(start)
        for before in [one for one in self._open if one.site == site]:
            self._open.remove(before)  # left before its end
            self._end(before, n_steps)
        self._begin(site).opened = True
        self._charge(now, waited=True)
        self.eventful = True

    def fetched(self, site: str, start: int, end: int, *, with_grad: bool, n_steps: int) -> None:
        self._charge(start)
        one = next((p for p in reversed(self._open) if p.site == site), None)
        if one is None:
            one = self._begin(site)
        one.longest_ns, one.body_ns = max(one.longest_ns, one.body_ns), 0
        self._current = one
        self._since_ns = start
        self._charge(end, waited=True)
        if not one.n_batches:
            one.opening_ns = one.took_ns
        one.n_batches += 1
        one.n_with_grad += with_grad
        one.fed = one.steps = with_grad
        self.eventful = True

    def ran_out(self, site: str, start: int, now: int, *, n_steps: int) -> None:
        """Its epoch was at an end, found by a fetch from `start` to `now`."""
        one = next((p for p in reversed(self._open) if p.site == site), None)
        if one is None:
            return
        self._charge(start)
        self._current = one
        self._since_ns = start
        self._charge(now, waited=True)
        one.longest_ns = max(one.longest_ns, one.body_ns)
        # Those begun within it were left with it, as by zip.
        while (last := self._open.pop()) is not one:
            self._end(last, n_steps)
        self._end(one, n_steps)
        self._current = self._open[-1] if self._open else None

    def worked(self, *, stepped: bool) -> None:
        """A backward pass, or an optimizer stepped: on all that such passes have fetched since."""
        for site, opened in self._read_before.items():
            self.joining.seen(site, self._n_steps, opened=opened)
        self._read_before.clear()
        for one in self._open:
            one.n_worked += one.fed
            one.n_stepped += stepped and one.steps
            one.fed = False
            one.steps = one.steps and not stepped

    def trained_elsewhere(self) -> Elsewhere | None:
        """What is trained on since the last step; None: on nothing else."""
        one = max(self._open, key=lambda p: p.n_worked, default=None)
        if one is None or not one.trains:
            return None
        before = [e for e in self._stretch.trained if e.site == one.site]
        return Elsewhere(
            one.site,
            one.n_worked + sum(e.n_worked for e in before),
            one.took_ns - one.opening_ns + sum(e.ns for e in before),
        )

    def is_phase(self, elsewhere: Elsewhere, n_steps: int, *, n_before: int) -> bool:
        """Whether so much training elsewhere is more than passes by turns, or most of all.

        Each of `n_before` times that it was doubles it: long epochs by turns would be for ever.
        """
        times = PHASE_TIMES if self._stretch.epoch_over else BROKEN_OFF_TIMES
        least_s = max(MIN_PHASE_S, times * self.run_ns(n_steps) / NS_PER_S)
        return bool(elsewhere.ns / NS_PER_S >= least_s * 2**n_before)

    def run_ns(self, n_steps: int) -> int:
        """The longest that was trained on the step's loader alone: an epoch of it, or several.

        Not less than its steps take with their own batches, which windows may do without.
        """
        run_ns = self.began_ns - self._run_began_ns - self._run_outside_ns
        by_steps_ns = (n_steps - self._run_first_step) * self.step_ns
        return max(self.longest_run_ns, run_ns, by_steps_ns)

    def saved(self, site: str, start: int, end: int, *, n_steps: int) -> None:
        self._charge(start)
        self._since_ns = end
        found = self._sum("save", site)
        if found is not None:
            self._count(found, end - start, n_steps)
        self._stretch.known_ns += end - start
        self.eventful = True

    def epoch_over(self, took_ns: int) -> None:
        """The fetch at the last boundary found the epoch of the loader that feeds the step over."""
        self._stretch.epoch_over = self.eventful = True
        # What its workers' end took is in this fetch, and was told already.
        self._stretch.loader_ns = max(self._stretch.loader_ns, took_ns)

    def renewed(self, start: int, now: int) -> None:
        """A loader of the step got a new iterator, or its workers were shut down, meanwhile."""
        self._charge(start)  # a pass that is under way, as one over tasks, takes none of it
        self._since_ns = now
        self._stretch.renewed = self.eventful = True
        self._stretch.loader_ns += now - start

    def boundary(self, now: int, n_steps: int) -> None:
        """A step boundary behind which something else lay (`eventful`)."""
        self._charge(now)
        self._read_before.clear()
        if not self.joining.decided and not self._stretch.epoch_over:
            for one in self._open:
                if one.joins:
                    self.joining.seen(one.site, n_steps - 1, opened=one.opened)
                elif one.n_batches == 1 and one.fed:
                    self._read_before[one.site] = one.opened
        for one in reversed(self._open):
            self._end(one, n_steps)
        self._open.clear()
        self._current = None
        stretch, self._stretch, self.eventful = self._stretch, _Stretch(), bool(self._read_before)
        self._n_steps = n_steps
        if stretch.epoch_over:
            self.n_epochs += 1
        if stretch.epoch_over and stretch.trained:
            self.longest_run_ns = self.run_ns(n_steps)
            self.begin(now, n_steps)
        elif not stretch.trained:
            self._run_outside_ns += stretch.known_ns
        if stretch.epoch_over or stretch.renewed:
            for found in stretch.held:
                found.n_at_epoch_end += 1
        into = self._gaps if stretch.epoch_over else self._crossings
        held = bool(stretch.held) or stretch.epoch_over
        if self.began_ns and held and self._undisturbed():
            into.n += 1
            into.whole_ns += now - self.began_ns
            into.loader_ns += stretch.loader_ns
            into.known_ns += stretch.known_ns

    def record(self, n_steps: int) -> WallRecord:
        """All so far."""
        crossings, gaps = self._crossings, self._gaps
        return WallRecord(
            n_steps=n_steps,
            n_epochs=self.n_epochs,
            n_crossings=crossings.n,
            crossings_ns=crossings.whole_ns,
            crossings_loader_ns=crossings.loader_ns,
            crossings_known_ns=crossings.known_ns,
            n_gaps=gaps.n,
            gaps_ns=gaps.whole_ns,
            gaps_loader_ns=gaps.loader_ns,
            gaps_known_ns=gaps.known_ns,
            in_steps=self.in_steps,
            outside=tuple(
                OutsideRecord(what=what, site=site, **asdict(found))
                for (what, site), found in self._sums.items()
            ),
        )

    def leave_out(self, joined: list[str]) -> None:
        """Nothing of these loaders lies outside the steps any more: they join them."""
        self._sums = {key: x for key, x in self._sums.items() if key[1] not in joined}
        self._crossings, self.in_steps = _Sums(), False

    # ------------------------------------------------------------ sums

    def _begin(self, site: str) -> _Pass:
        one = self._current = _Pass(site)
        self._open.append(one)
        return one

    def _charge(self, now: int, *, waited: bool = False) -> None:
        """The time up to now belongs to the pass that runs."""
        one, since = self._current, self._since_ns
        self._since_ns = now
        if one is None:
            return
        ns = max(0, now - since)
        one.took_ns += ns
        if waited:
            one.wait_ns += ns
        else:
            one.body_ns += ns

    def _end(self, one: _Pass, n_steps: int) -> None:
        """A pass is over: it ran out, or the loop left it before the boundary now reached."""
        if not one.n_batches:
            return
        if one.longest_ns:  # else nothing tells how long its only batch took
            one.took_ns -= max(0, one.body_ns - int(LAST_BATCH_TIMES * one.longest_ns))
        self._stretch.known_ns += one.took_ns
        if one.trains:
            trained_ns = max(0, one.took_ns - one.opening_ns)
            self._stretch.trained.append(Elsewhere(one.site, one.n_worked, trained_ns))
        found = self._sum("pass", one.site)
        if found is None:
            return
        if self._passes_stand():
            found.wait_ns += one.wait_ns
            found.n_batches += one.n_batches
            found.n_with_grad += one.n_with_grad
            found.n_worked += one.n_worked
            found.n_stepped += one.n_stepped
        self._count(found, one.took_ns, n_steps)

    def _count(self, found: _Sum, took_ns: int, n_steps: int) -> None:
        if not found.n:
            found.first_step = n_steps
        found.n += 1
        found.n_visits += found.last_step != n_steps
        found.last_step = n_steps
        if self._passes_stand():
            found.first_ns = found.first_ns or took_ns
            found.n_timed += 1
            found.timed_ns += took_ns
        self._stretch.held.append(found)

    def _sum(self, what: What, site: str) -> _Sum | None:
        found = self._sums.get((what, site))
        if found is None and len(self._sums) < MAX_PLACES:
            found = self._sums[what, site] = _Sum()
        return found
