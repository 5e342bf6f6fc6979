"""A proof as text for a terminal, and as Markdown for a pull request."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Estimate, interval
from loaderdoctor.proving.judge import MAX_RATIO_KNOWN, Promise, Proof


def headline(proof: Proof, *, promise: Promise | None = None) -> str:
    """What the change brought, in a sentence, and where losses can't be compared, in another."""
    ratio, faster = _ratio(proof.speed_up), proof.faster()
    if faster is None:
        said = f"No difference beyond the noise: {ratio} as fast"
    elif faster:
        said = f"{ratio} as fast"
    else:
        said = f"Slower: {ratio} as fast"
    also = ""
    if proof.differs_from_itself and proof.numerics == "unknown":
        also = " Whether training stays the same can't be told: the script differs from itself."
    kept = proof.keeps(promise)
    if promise is None:
        return f"{said}.{also}"
    if kept is None:
        return f"{said}; too few turns to tell whether as promised ({promised(promise)}).{also}"
    if kept and promise.is_gain and not promise.at_best and faster is None:
        return f"{said}; too noisy to rule out what was promised ({promised(promise)}).{also}"
    word = "promised" if promise.is_gain else "expected"
    return f"{said}; {'as' if kept else 'not as'} {word} ({promised(promise)}).{also}"


def promised(promise: Promise) -> str:
    """`3.9x [3.10, 4.70]`, `at best 3.9x`, `about as fast, may help: 1.2x [0.83, 1.72]`.

    The interval is one of what a new run of the script gets.
    """
    said = f"{'at best ' if promise.at_best else ''}{fmt.ratio(promise.times)}"
    if promise.low is None or promise.high is None:
        return said
    between = f"[{promise.low:.2f}, {promise.high:.2f}]"
    return f"{said} {between}" if promise.is_gain else f"about as fast, may help: {said} {between}"


def rows(proof: Proof, *, expected: str | None = None) -> list[tuple[str, str]]:
    """What a reader checks: times, batches, losses."""
    compared = proof.kept
    shown = [
        ("as it is", _time(proof.before_ms)),
        ("changed", _time(proof.after_ms)),
        ("speed", f"{_ratio(proof.speed_up)}, 95 % of {fmt.count(proof.speed_up.n, 'turn')}"),
        ("training", proof.beside(expected)),
    ]
    if proof.numerics == "redrawn" and proof.fixed is not None:
        compared = proof.fixed
    if compared.n_same_inputs is not None:
        n = compared.n_steps
        shown.append(("model inputs", f"{compared.n_same_inputs} of the first {n} steps identical"))
    if compared.max_loss_difference is not None:
        own = proof.own.max_loss_difference if proof.own is not None else None
        beside = f"; the script beside itself: {own:.1g}" if own is not None else ""
        shown.append(
            ("losses", f"differ by at most {compared.max_loss_difference:.1g} (relative){beside}")
        )
    return shown


def markdown(
    proof: Proof,
    *,
    title: str,
    machine: str,
    command: str,
    promise: Promise | None,
    expected: str | None = None,
) -> str:
    """One page that can go into a pull request."""
    lines = [f"### {title}", "", headline(proof, promise=promise), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows(proof, expected=expected)]
    lines += [
        "",
        f"Original and changed script in fresh processes, in turns, on the same seed: `{command}`. "
        f"{machine}{f' {proof.versions}.' if proof.versions else ''}",
        "",
    ]
    return "\n".join(lines)


def _time(estimate: Estimate) -> str:
    return f"{fmt.step_ms(estimate.value, interval(estimate))} a step"


def _ratio(estimate: Estimate) -> str:
    if estimate.high > MAX_RATIO_KNOWN * estimate.value:
        return f"{fmt.ratio(estimate.value)} (too few turns for an interval)"
    return f"{fmt.ratio(estimate.value)} [{estimate.low:.2f}, {estimate.high:.2f}]"
