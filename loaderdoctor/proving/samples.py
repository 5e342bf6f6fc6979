"""What reached the model in two forms of a script -> whether samples and inputs are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.instrument.wire.channel import N_KEPT, inputs_file

Digests = NDArray[np.uint64]

# Two epochs of the script itself may differ by so many of their samples: what fills no whole batch.
MAX_OWN_DIFFERENCE = 0.1
# Inputs that differ by more than this, relative to the largest, are other batches and not the same
# ones computed in another order of operations.
MAX_INPUT_DIFFERENCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Of one epoch of the script as it is, beside as much of its changed form."""

    n: int  # of the script as it is; 0: not seen
    n_lost: int = 0  # of these, not in the changed form's epoch
    n_doubled: int = 0  # in it once more than in the script's
    n_others: int = 0  # in it, and nowhere in the script's: made, or drawn, otherwise
    n_changed: int = 0  # of the changed form
    n_own: int = 0  # by which two epochs of the script itself differ
    in_order: bool = False  # they come one after the other as they did
    drawn: bool = False  # making them drew random numbers, fixed by sample: the same in each epoch
    why_not: str | None = None  # in words, where nothing can be said

    @property
    def same(self) -> bool | None:
        """Whether it trains on the same samples; None: not known.

        Where some are made otherwise, only their number tells whether any is lost. Where they are
        drawn, what is drawn once and kept looks like what is drawn anew.
        """
        if self.why_not is not None:
            return None
        if abs(self.n_changed - self.n) > self.n_own:
            return False
        if self.n_others > self.n_own:
            return None
        there = max(self.n_lost, self.n_doubled + self.n_others) <= self.n_own
        return None if there and self.drawn else there

    @property
    def words(self) -> str:
        """`same samples in another order`, `samples lost: 3 of 400`."""
        if self.why_not is not None:
            return f"whether samples are lost is not known: {self.why_not}"
        of, n_less = f"of {self.n:,}", self.n - self.n_changed
        if self.same or (self.same is None and self.n_others <= self.n_own):
            but = f", but for {self.n_lost:,} {of}, as two epochs of the script itself differ"
            how = "the same order" if self.in_order else "another order"
            anew = "; their random draws were fixed, so whether each epoch draws anew is not known"
            return f"same samples in {how}{but if self.n_lost else ''}{anew if self.drawn else ''}"
        if self.n_others > self.n_own:
            others = f"{self.n_others:,} of {self.n_changed:,} samples are made otherwise"
            if self.same is None:
                return f"{others}, as many as before, so whether any is lost is not known"
            return f"samples {'lost' if n_less > 0 else 'doubled'}: {abs(n_less):,} {of}; {others}"
        named = (("lost", self.n_lost), ("doubled", self.n_doubled))
        return ", ".join(f"samples {name}: {n:,} {of}" for name, n in named if n)


def samples(
    original: list[Digests],
    changed: list[Digests],
    first: Digests | None,
    *,
    alike: bool,
    drawn: bool = False,
) -> Samples:
    """The verdict. `original`, `changed`: whole epochs; `first`: the changed form's first samples.

    `alike`: all rows had one shape. A batch that is padded makes a sample look like another.
    `drawn`: making one drew random numbers, with a seed of its own that each epoch has again.
    """
    if not original:
        return Samples(n=0, why_not="no whole epoch of the script was seen in time")
    n, own = len(original[0]), 0
    if len(original) > 1:
        gone, come = _missing(original[0], original[1]), _missing(original[1], original[0])
        own = max(int(gone.sum()), int(come.sum()))
    found = [
        _beside(original[0], other, own)
        for other in (*changed[:1], *((first,) if first is not None else ()))
    ]
    if not found:
        return Samples(n=n, why_not="no whole epoch of the changed form was seen in time")
    best = min(found, key=lambda x: x.n_lost + x.n_doubled + x.n_others)
    if own > MAX_OWN_DIFFERENCE * n:
        return Samples(n=n, why_not="they differ from epoch to epoch in the script itself")
    if not best.same and not alike:
        return Samples(n=n, why_not="their rows have other lengths from batch to batch")
    if not best.same and len(original) < 2:
        return Samples(n=n, why_not="one epoch of the script does not tell whether they vary")
    return replace(best, drawn=drawn)


def _beside(ours: Digests, theirs: Digests, own: int) -> Samples:
    lost, more = _missing(ours, theirs), _missing(theirs, ours)
    known = np.isin(np.unique(theirs), ours)
    return Samples(
        n=len(ours),
        n_lost=int(lost.sum()),
        n_doubled=int(more[known].sum()),
        n_others=int(more[~known].sum()),
        n_changed=len(theirs),
        n_own=own,
        in_order=np.array_equal(ours, theirs),
    )


def _missing(ours: Digests, theirs: Digests) -> NDArray[np.int64]:
    """For each of our different samples, in order, how often it is here more often than there."""
    kinds, counts = np.unique(ours, return_counts=True)
    others, n_others = np.unique(theirs, return_counts=True)
    at = np.searchsorted(others, kinds)
    there = np.zeros_like(counts)
    inside = at < len(others)
    found = inside.copy()
    found[inside] = others[at[inside]] == kinds[inside]
    there[found] = n_others[at[found]]
    missing: NDArray[np.int64] = np.maximum(counts - there, 0)
    return missing


def digests_in(file: Path) -> Digests:
    return np.frombuffer(file.read_bytes(), dtype=np.uint64)


def input_difference(a: Path, b: Path) -> float | None:
    """How far the kept inputs of two runs lie apart, relative to their size, at most.

    None where they are the same, were not kept, or have other shapes: then they are other batches.
    """
    worst = 0.0
    for step in range(N_KEPT):
        ours, theirs = (_kept(inputs_file(folder, step)) for folder in (a, b))
        if len(ours) != len(theirs) or not ours:
            return None
        for x, y in zip(ours, theirs, strict=True):
            if x.shape != y.shape:
                return None
            size = max(float(np.abs(x).max(initial=0.0)), 1e-30)
            worst = max(worst, float(np.abs(x - y).max(initial=0.0)) / size)
    return worst if 0.0 < worst <= MAX_INPUT_DIFFERENCE else None


def _kept(file: Path) -> list[NDArray[np.float64]]:
    """In order; [] where nothing was kept."""
    if not file.exists():
        return []
    with np.load(file, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]
