"""A script that ends before all was measured is run again: its runs, as one measured run.

Windows are pooled: a window that the script's end cut short is measured in the next run. The
script gets the same arguments, folder and terminal each time. It is not run again where that
would cost the user too much, or where it would measure something else (see `_refusal`,
`endings.unlike`); `refused` then says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.endings import NeverTrainedError, RunTold, is_cut, unlike
from loaderdoctor.instrument.command.launched_run import OneRun, OnEvent
from loaderdoctor.instrument.command.rank_group import RankGroup
from loaderdoctor.instrument.command.script_run import RanksSpawnedError, ScriptRun
from loaderdoctor.instrument.wire.protocol import Ended, Note, Observed, WindowDone, WindowRequest

# A script that runs longer than this is no short one: the user would not expect to wait for it a
# second time, and what its first run gave is as much as a budget holds by default.
LONGEST_RUN_S = 60.0
# Starting the script again does not count towards the budget, up to this part of it: runs of ten
# seconds that start in four would leave six tenths of a budget to measure in.
STARTING_SHARE = 0.5

RUN_AGAIN = "script-run-again"  # Note.kind: how often it ran
NEVER_TRAINED = "the script ended and has trained nothing; it is run again, and the loop that it "
NEVER_TRAINED += "has is measured."


@dataclass(slots=True, kw_only=True)
class _Begun:
    run: OneRun
    start_s: float
    warm_s: float | None = None
    over_s: float | None = None
    n_windows: int = 0
    told: bool = False

    @property
    def to_warm_s(self) -> float | None:
        """From its start until its loop was warm."""
        return self.warm_s - self.start_s if self.warm_s is not None else None


@dataclass(slots=True, eq=False, kw_only=True)
class RepeatedRun:
    """The runs of one script, one after the other; a context manager that leaves none behind.

    `start` makes a run that is not started yet; its argument: whether to wait for training to
    begin. `say` is told, in a sentence, that another run begins or why none does.
    """

    start: Callable[[bool], OneRun]
    say: Callable[[str], None]
    budget_s: float
    never: str | None = None  # why it is run once only, in a sentence; None: it may run again
    # Likewise, but it may run again where nothing at all could be measured.
    not_pooled: str | None = None
    takes_ranks: bool = False  # go on with processes that the script starts to train
    clock: Callable[[], float] = time.monotonic
    notes: list[Note] = field(default_factory=list)  # of all runs
    refused: str | None = None  # why it was not run again, where it ended too early
    out_of_time: bool = False  # it was not run again because the budget was spent
    patient: bool = True  # wait for training to begin; False: any loop will do
    told: list[RunTold] = field(default_factory=list)  # runs that are over
    observed: Observed | None = None  # of the first run
    # The first run that came to its own end: what the user's script does and says when unwatched.
    first_whole: Ended | None = None
    _now: _Begun | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _starting_s: float = 0.0  # spent on all starts but the first
    _most_free_s: float | None = None  # of it, what may be free at most; None: a part of the budget
    _measuring_since_s: float | None = None
    _stopped: bool = False
    _enough: bool = False  # no other run is wanted
    _over: Ended | None = None  # how the last run that counts ended, where the next one did not
    _timeout_s: float | None = None
    _on_event: OnEvent | None = None

    def __enter__(self) -> RepeatedRun:
        """Start the script. Raises UsageError or RunError."""
        self._enter(self.start(self.patient))
        return self

    def __exit__(self, *raised: object) -> None:
        self._leave()

    # ------------------------------------------------------------ of ScriptRunLike

    @property
    def ended(self) -> Ended | None:
        """Set once the script is over and will not be run again.

        What its whole course cost (`wall`) is that of one run, the first that came to its end.
        """
        ended = self._over or self._ended_now
        if ended is None or self._goes_on(ended):
            return None
        whole = self.first_whole
        if whole is None or whole is ended:
            return ended
        loaders = {one.id: one for one in (*ended.loaders, *whole.loaders)}
        return msgspec.structs.replace(
            ended, wall=whole.wall or ended.wall, loaders=tuple(loaders.values())
        )

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until the first loop is warm. Raises RunError where that never happens.

        A script that ended without training is run again for what its loop does instead.
        """
        self._timeout_s, self._on_event = timeout_s, on_event
        try:
            observed = self._wait_warm()
        except NeverTrainedError:
            ended = self._ended_now
            if ended is None or self._refusal(ended, untrained=True) is not None:
                raise
            self.patient = False
            self.say(NEVER_TRAINED)
            self._tell(ended)
            self._leave()
            self._enter(self.start(False))
            observed = self._wait_warm()
        self.observed = observed
        return observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure these windows, in as many runs as that takes.

        Fewer come back where the script ends and is not run again.
        """
        if self._measuring_since_s is None:
            self._measuring_since_s = self.clock()
        found: dict[int, WindowDone] = {}
        left, first_of_run = list(requests), None
        while left and self._over is None:
            for window in self._current.measure(left, on_event, timeout_s):
                known = found.get(window.id)
                if known is None or window.n_steps >= known.n_steps:
                    found[window.id] = window
                self._begun.n_windows += window.n_steps > 0
            over = self._ended_now
            if over is None or not self._goes_on(over):
                break
            # What even a whole run was too short for will not fit the next one either.
            left = [r for r in left if r.id != first_of_run and is_cut(r, found.get(r.id))]
            if not left or not self._begin_again(over, left):
                break
            first_of_run = left[0].id
        return [found[one.id] for one in requests if one.id in found]

    def stop(self, to_end: bool = False) -> None:
        self._stopped = True
        if self._over is None:
            self._current.stop(to_end)
            if (ended := self._ended_now) is not None:
                self._tell(ended)

    # ------------------------------------------------------------ more

    def no_more(self) -> None:
        """Measure what is still asked for in the run under way: it is the last one."""
        self._enough = True

    @property
    def ranks(self) -> RankGroup | None:
        """The ranks, where there are several."""
        run = self._current
        return run if isinstance(run, RankGroup) else None

    @property
    def exit_code(self) -> int:
        """Of the script itself, where it ended without being stopped: its first run's."""
        ended = self.first_whole or self._ended_now
        by_itself = ended is not None and ended.how in ("script-failed", "script-ended")
        return ended.exit_code if ended is not None and by_itself else 0

    def measuring_clock(self) -> float:
        """Seconds that count towards the budget: starting again does not, up to a part of it."""
        return self.clock() - self._free_s(self._starting_s)

    def extend(self, budget_s: float) -> None:
        """Measure until so many seconds, longer than before: no further start is free."""
        self._most_free_s = self._free_s(self._starting_s)
        self.budget_s = budget_s

    def reopen(self) -> RepeatedRun:
        """Start again after a trial took the script down. Raises RunError."""
        if (ended := self._ended_now) is not None:
            self._tell(ended)
        self._open(carried=())
        return self

    # ------------------------------------------------------------ whether

    def _goes_on(self, ended: Ended) -> bool:
        """Whether the next window will be measured in another run; notes why not."""
        if self._stopped or self._enough or self.refused is not None:
            return False
        if ended.how != "script-ended" or ended.exit_code:
            return False
        if (why := self._refusal(ended)) is not None:
            self.refused = why
            return False
        to_warm_s = self._begun.to_warm_s or 0.0
        self.out_of_time = self.clock() + to_warm_s >= self._end_s(to_warm_s)
        return not self.out_of_time

    def _refusal(self, ended: Ended, *, untrained: bool = False) -> str | None:
        """Why a script that ended in order is not run again, in a sentence; None: it may be.

        One that was `untrained` gave no answer at all: however long it took, it may.
        """
        if self.never is not None:
            return self.never
        if ended.read_stdin:
            return "It read from its standard input, so it was not run again."
        if untrained:
            return None
        took_s = (self._begun.over_s or self.clock()) - self._begun.start_s
        if took_s > LONGEST_RUN_S and not self.told:
            return (
                f"It ran for {took_s:.0f} s, and a script that takes over a minute is not run "
                "again: let it run longer (more epochs, more data)."
            )
        return self.not_pooled

    def _end_s(self, to_warm_s: float) -> float:
        """When the budget is spent, on the clock, after another start that takes so long."""
        since = self._measuring_since_s
        if since is None:
            return float("inf")
        return since + self.budget_s + self._free_s(self._starting_s + to_warm_s)

    def _free_s(self, starting_s: float) -> float:
        """Of seconds spent on starting, those that do not count towards the budget."""
        most_s = self._most_free_s
        return min(starting_s, STARTING_SHARE * self.budget_s if most_s is None else most_s)

    # ------------------------------------------------------------ the next run

    def _begin_again(self, ended: Ended, left: Sequence[WindowRequest]) -> bool:
        """Whether another run's loop is warm and like the first; `left` is measured in it."""
        self._tell(ended)
        begun, n = self._now, len(self.told) + 1
        took_s = self.told[-1].took_s
        self.say(f"the script ended by itself after {took_s:.0f} s; run {n} begins, to go on.")
        try:
            observed = self._open(carried=[one.id for one in left])
        except RunError as error:
            why: str | None = str(error).rstrip(".")
        else:
            assert self.observed is not None
            why = unlike(self.observed, observed)
            if why is None:
                self._note()
                return True
            self._current.stop()
            self._leave()
            self._now = begun
        self._over = ended
        self.refused = f"Run again, it did otherwise: {why}."
        self.say(f"run {n} did otherwise: {why}. What was measured before stands.")
        return False

    def _note(self) -> None:
        """Say in the report how often it ran."""
        took_s = self.told[0].took_s
        text = (
            f"The script ended by itself (after {took_s:.0f} s the first time) and was run "
            f"{len(self.told) + 1} times; what was measured in all runs is pooled. Where its time "
            "went besides the steps is that of one run."
        )
        self.notes[:] = [note for note in self.notes if note.kind != RUN_AGAIN]
        self.notes.append(Note(kind=RUN_AGAIN, text=text))

    def _open(self, *, carried: Sequence[int]) -> Observed:
        """Another run, its loop warm. Windows that ranks measured before stay known of them."""
        began_s, begun, ranks = self.clock(), self._now, self.ranks
        try:
            self._leave()
            self._enter(self.start(self.patient))
            observed = self._wait_warm()
        except BaseException:
            self._leave()
            self._now = begun  # what was measured is its
            raise
        finally:
            self._starting_s += self.clock() - began_s
        if ranks is not None and self.ranks is not None:
            self.ranks.remember(ranks, but=carried)
        return observed

    def _wait_warm(self) -> Observed:
        try:
            observed = self._current.wait_observed(self._timeout_s, self._on_event)
        except RanksSpawnedError:
            run = self._current
            if not self.takes_ranks or not isinstance(run, ScriptRun):
                raise
            group, start_s = RankGroup.of_spawned(run), self._begun.start_s
            self._leave()
            self._enter(group)
            self._begun.start_s = start_s
            observed = self._current.wait_observed(self._timeout_s, self._on_event)
        self._begun.warm_s = self.clock()
        return observed

    def _enter(self, run: OneRun) -> None:
        if run.notes is not self.notes:
            self.notes += run.notes
            run.notes = self.notes
        self._now = _Begun(run=run, start_s=self.clock())
        self._stack.enter_context(run)

    def _leave(self) -> None:
        self._stack.close()

    def _tell(self, ended: Ended) -> None:
        begun = self._begun
        if begun.told:
            return
        begun.told = True
        if self.first_whole is None and ended.how in ("script-ended", "script-failed"):
            self.first_whole = ended
        self.told.append(
            RunTold(
                took_s=(begun.over_s or self.clock()) - begun.start_s,
                to_warm_s=begun.to_warm_s,
                n_windows=begun.n_windows,
                n_steps=ended.n_steps,
                how=ended.how,
            )
        )

    @property
    def _ended_now(self) -> Ended | None:
        """How the run under way ended; notes when that was first seen."""
        ended = self._current.ended
        if ended is not None and self._begun.over_s is None:
            self._begun.over_s = self.clock()
        return ended

    @property
    def _begun(self) -> _Begun:
        assert self._now is not None, "it is not started"
        return self._now

    @property
    def _current(self) -> OneRun:
        return self._begun.run
