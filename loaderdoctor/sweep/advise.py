"""The candidate that won a sweep as changes to write: setting, line of code, measured gain."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.advice.code import Written, written_together
from loaderdoctor.advice.writing import changes_training, written
from loaderdoctor.estimate import MIN_GAIN_SHARE, Estimate, interval
from loaderdoctor.facts import Facts, own_settings
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.report.model import NotAdvised, Recommendation
from loaderdoctor.setting_words import capitalised, phrase
from loaderdoctor.settings import AXES_BY_NAME, Settings, Value
from loaderdoctor.tryout.answers import recommendations
from loaderdoctor.tryout.comparing import in_new_processes
from loaderdoctor.tryout.ranking import (
    SIMPLER_SHARE,
    Complexity,
    Ranking,
    complexity,
    needed_changes,
)

_CAUTIONS = {
    "num_workers": "each worker holds its own copy of what the dataset keeps in memory",
    "persistent_workers": "workers keep their memory between epochs, and a dataset that is "
    "changed between epochs stays as it was in them",
    "in_order": "batches arrive in another order: runs are no longer reproducible",
    "background": "the thread shares the interpreter lock with the loop",
    "pin_memory": "pinned memory can't be swapped out: mind it where memory is short",
    "keep_iterator": "workers never see a dataset that is changed between epochs",
    "resident": "the whole dataset stays in device memory, and random augmentation of the dataset "
    "is applied once only",
    "reuse_buffers": "the buffers stay in shared memory, and workers must be forked",
    "worker_cpus": "workers that are bound can't move to CPUs that are free",
    "worker_gc": "objects that refer to each other in a circle stay longer in the workers' memory",
    "packed": "batches are on the device as the loop gets them",
    "threads": "the dataset is called by several threads at once, which share the interpreter lock "
    "with the loop: what it changes of itself must bear that",
    "spdl": "its workers are not seeded, and worker_init_fn is not called",
    "cache": "every sample stays in host memory, and random augmentation is applied once only",
    "batched": "the rows are looked up in the arrays as they are when the loader is made",
    "storage": "the copy takes its size of memory or disk, and has to be kept up to date",
    "gc": "objects that refer to each other in a circle stay in memory until gc.collect()",
    "device_decode": "changes numerics: pixels differ a little, and crops are drawn in the loop's "
    "own process",
    "uint8": "floats are made on the device: whatever reads the batch before must expect bytes",
}
MAX_PROBES_TOLD = 4
TOLD = 0.005  # a difference that rounds to less than a hundredth is none
CHANGES_NUMERICS = "changes numerics or training: check that the model still learns as well"


def recommended_rows(
    ranking: Ranking, observed: Observed, facts: Facts
) -> tuple[Recommendation, ...]:
    """One row for each setting that the recommended trial changes; empty where none is worth it."""
    index = ranking.recommended
    if index is None or ranking.gain_ms is None or ranking.gain_share is None:
        return ()
    own = own_settings(observed)
    changes = needed_changes(ranking.results[index].settings, own)
    own_ms, measured = ranking.results[0].cost_ms, _with_the_gain(ranking)
    found = recommendations(
        changes,
        own=own.as_dict(),
        written=lambda name: _written(name, changes, facts),
        caution=_caution,
        trains=lambda name, value: changes_training(facts, name, value),
        summary=f"{gain_sentence(ranking)} {nearness_sentence(ranking, own)}".strip(),
        measured=measured,
        speed_up=in_new_processes(own_ms.value if own_ms else None, measured, first=own_ms),
    )
    return tuple(found)


def _with_the_gain(ranking: Ranking) -> Estimate | None:
    """The step with the recommended settings: the loop's own less the gain that was confirmed.

    Not the trial's row in the table: that figure won a comparison of many noisy ones. For as many
    samples as the loop's own step has.
    """
    own, gain = ranking.results[0].cost_ms, ranking.gain_ms
    if own is None or gain is None:
        return None
    return gain.taken_from(own.value)


def _caution(name: str, value: Value) -> str | None:
    if AXES_BY_NAME[name].numerics:
        return CHANGES_NUMERICS
    return _CAUTIONS.get(name) if value not in (False, "off", 0) else None


def not_advised(ranking: Ranking) -> tuple[NotAdvised, ...]:
    """Trials that were not run because they would have harmed the run, each reason once."""
    reasons: dict[str, str] = {}
    for result in ranking.results:
        if result.status == "skipped" and result.reason and "not reached" not in result.reason:
            reasons.setdefault(result.reason, result.settings.label())
    return tuple(NotAdvised(setting=label, reason=why) for why, label in reasons.items())


def verdict_of_sweep(ranking: Ranking) -> str:
    """What the sweep found, in a sentence: the first thing the user reads."""
    if ranking.best is None:
        return "No trial was measured to its end."
    if ranking.recommended is not None:
        label = ranking.results[ranking.recommended].settings.label()
        return f"{capitalised(label)}: {gain_sentence(ranking)}"
    if ranking.candidate and ranking.gain_ms is not None and ranking.gain_share is not None:
        label = ranking.results[ranking.candidate].settings.label()
        gain = fmt.ms(ranking.gain_ms.value, interval(ranking.gain_ms))
        longer = "Measure longer with --budget, on a quiet machine, to know."
        simplest = "is the simplest of those that did best"
        did = "did best" if ranking.candidate == ranking.best else simplest
        did = did if ranking.best else "came nearest"
        if not ranking.confirmed:
            return (
                f"No setting is shown to help: {label} {did}, by {gain} a step in the rounds, "
                f"but too little was measured to confirm it. {longer}"
            )
        again = f"{label} {did}, but measured again next to the loop's own settings it gains"
        if ranking.gain_share.low > 0:
            return f"No setting gains enough to be worth it: {again} {gain} a step."
        if ranking.gain_share.high < 0:
            return f"No setting is shown to help: {again} {gain} a step: it is slower."
        return f"No setting is shown to help: {again} {gain} a step, within the noise. {longer}"
    probes = probe_sentence(ranking)
    if probes and all(r.settings.probes for r in ranking.results if r.index):
        return probes
    return f"{_nothing(ranking)} {probes}".strip()


def _nothing(ranking: Ranking) -> str:
    """That nothing was worth a second look, as far as the rounds show it."""
    tied = len(ranking.tied_with)
    others = f"; {fmt.count(tied, 'other trial')} cannot be told from the best" if tied else ""
    gains = [g for i in ranking.compared if i and (g := ranking.round_gain(i)) is not None]
    if any(gain.low > 0 for gain in gains):
        limit = fmt.share(MIN_GAIN_SHARE)
        return f"Nothing worth changing: no settings gain {limit} over the loop's own{others}."
    return f"Nothing worth changing: no settings beat the loop's own beyond the noise{others}."


def probe_sentence(ranking: Ranking) -> str:
    """What the trials that are no setting to train with came to; "" without any."""
    own = ranking.results[0].cost_ms
    probes = [
        r for r in ranking.results if r.index and r.settings.probes and r.cost_ms and not r.apart
    ]
    if own is None or not probes:
        return ""
    probes.sort(key=lambda r: r.cost_ms.value if r.cost_ms else 0.0)
    shown = [
        f"{r.settings.label()} {fmt.ms(r.cost_ms.value, interval(r.cost_ms))}"
        for r in probes[:MAX_PROBES_TOLD]
        if r.cost_ms
    ]
    more = len(probes) - len(shown)
    return (
        f"For comparison with the loop's own {fmt.ms(own.value, interval(own))} a step: "
        f"{'; '.join(shown)}{f'; and {more} more' if more > 0 else ''}. "
        "These answer a question and are no settings to train with."
    )


def gain_sentence(ranking: Ranking) -> str:
    """`saves 5.1 ± 0.2 ms a step (51 %), confirmed in fresh windows`; "" without a gain."""
    gain, share = ranking.gain_ms, ranking.gain_share
    if gain is None or share is None:
        return ""
    how = (
        "confirmed in fresh windows next to the loop's own settings"
        if ranking.confirmed
        else "from the ranking rounds alone, not confirmed"
    )
    return f"saves {fmt.ms(gain.value, interval(gain))} a step ({fmt.share(share.value)}), {how}."


def nearness_sentence(ranking: Ranking, own: Settings) -> str:
    """How near the others are to what is recommended, in a line; "" without a recommendation.

    `own` are the settings of the loop as it is.
    """
    chosen, best = ranking.recommended, ranking.best
    if chosen is None or best is None:
        return ""
    alike = {i for i in (best, *ranking.tied_with) if i and i != chosen}
    one, fastest = ranking.results[chosen].cost_ms, ranking.results[best].cost_ms
    if chosen == best or one is None or fastest is None:
        if not alike:
            return "No other trial comes near."
        others = fmt.count(len(alike), "other trial")
        return f"It is the fastest; {others} cannot be told from it."
    label = ranking.results[best].settings.label()
    again = ranking.slower.get(chosen)
    if again is not None:
        return (
            f"It is the simplest of the {ranking.n_equal} trials that were measured once more and "
            f"lie within {fmt.share(SIMPLER_SHARE)} of the fastest, as far as noise tells: next to "
            f"that, {label}, it {_took(again)}.{_simpler(ranking, own)}"
        )
    less = fmt.share(1.0 - fastest.value / one.value)
    if chosen in ranking.tied_with:
        return (
            f"It is the simplest of {len(alike) + 1} trials that cannot be told apart; the fastest "
            f"of them, {label}, took {less} less time, within the noise."
        )
    if one.value > (1.0 + SIMPLER_SHARE) * fastest.value:
        return (
            f"{capitalised(label)} took {less} less time in the rounds, but too little was "
            "measured to say how much of that is luck: measure longer with --budget."
        )
    return f"{capitalised(label)} is {less} faster, too little for what more it takes."


def _simpler(ranking: Ranking, own: Settings) -> str:
    """Why it is none of the simpler trials that the rounds can't tell from the fastest."""
    chosen = ranking.recommended or 0

    def weight(index: int) -> Complexity:
        return complexity(ranking.results[index].settings, own)

    simpler = sorted((i for i in ranking.tied_with if i and weight(i) < weight(chosen)), key=weight)
    if not simpler:
        return ""
    first, more = simpler[0], len(simpler) - 1
    slower = ranking.slower.get(first)
    if slower is None:
        why = "was not measured there: the rounds left it behind, or time was short"
    elif slower.value > SIMPLER_SHARE:
        why = f"took {_between(slower)} longer there"
    else:
        why = "gained too little over the loop as it is"
    also = (
        f"; {more} more are no choice either" if more > 1 else "; nor is one more" if more else ""
    )
    return f" The simpler {ranking.results[first].settings.label()} {why}{also}."


def _took(slower: Estimate) -> str:
    """How much longer it took beside the fastest; the interval where that is not simplicity's."""
    if slower.value < TOLD:
        return "took no longer"
    if slower.value <= SIMPLER_SHARE:
        return f"took {fmt.share(slower.value)} longer"
    return f"took {_between(slower)} longer, which noise may explain"


def _between(part: Estimate) -> str:
    """`18 ± 20 %`."""
    return f"{100 * part.value:.0f} ± {100 * part.margin:.0f} %"


def _written(name: str, settings: Settings, facts: Facts) -> Written:
    """The user's own lines with the change, where they were seen; else what to do.

    Settings of the loader change one call together; each other setting has lines of its own.
    """
    found = written(facts, written_together(settings, name))
    said = phrase(name, settings.as_dict()[name])
    if found.code or found.idea or found.command:
        return found
    return replace(found, idea=f"In the script: {said}.")  # as what is taken out of the loop
