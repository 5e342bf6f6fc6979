"""A stream that each worker reads whole: proved by equal batches, and not by its code alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import ShardFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.streams import samples_repeated, shuffle_collapsed, uneven_shards
from loaderdoctor.instrument.wire.records import LabelsRecord, StreamRecord
from tests.findings.builders import healthy, loader, with_exposed, workers
from tests.findings.case import Case, check_fires, check_silent


def stream(n: int = 4, *, equal: int | None = 4, unsharded: bool = True, **more: Any) -> Facts:
    record = loader(
        kind="iterable",
        settings={"num_workers": n},
        safety={"unsharded_iterable": unsharded},
        n_equal_first=equal,
        **more,
    )
    return replace(healthy(), loaders=(record,))


REPEATED = Case(
    rule=samples_repeated,
    ill=stream(),
    share=None,
    severity=Severity.HIGH,
    evidence={"num_workers": 4, "equal_batches": 4},
    says=("Each of the 4 workers", "4 times an epoch", "get_worker_info()"),
    silent={
        "split": stream(unsharded=False, equal=1),
        "shuffled by each worker": stream(equal=1),
        "one worker": stream(1, equal=1),
        "two batches that happen to be equal": stream(equal=2),
        "map-style": healthy(),
    },
    missing={
        "all batches alike, or not seen": stream(equal=None),
        "no loader": replace(healthy(), loaders=()),
    },
)


def test_samples_repeated() -> None:
    check_fires(REPEATED)
    check_silent(REPEATED)


def test_the_code_that_splits_a_stream_is_in_its_librarys_words() -> None:
    own = samples_repeated(stream())
    wds = samples_repeated(stream(stream=StreamRecord(library="webdataset", splits=False)))
    assert own is not None
    assert wds is not None
    assert "get_worker_info()" in (own.advice or "")
    assert "wds.split_by_worker" in (wds.advice or "")


# Two workers read 90 batches in 9 s, the other two are out of data after 1 s: 4/9 of all time.
SEEN = ShardFacts(batches=(40, 40, 5, 5), ended_s=(9.0, 9.0, 1.0, 1.0), epoch_s=9.0)
EVEN = ShardFacts(batches=(23, 23, 22, 22), ended_s=(9.0, 9.0, 8.8, 8.0), epoch_s=9.0)


def dealt(
    seen: ShardFacts | None = SEEN,
    *,
    n_shards: int | None = None,
    kind: str = "iterable",
    input_: float = 0.6,
    n: int = 4,
    library: Any = "datasets",
) -> Facts:
    record = loader(
        kind=kind,
        settings={"num_workers": n},
        stream=None if n_shards is None else StreamRecord(library=library, n_shards=n_shards),
    )
    return replace(with_exposed(input_=input_, loaders=(record,)), shards=seen)


UNEVEN = Case(
    rule=uneven_shards,
    ill=dealt(),
    share=4 / 9,
    severity=Severity.HIGH,
    evidence={"num_workers": 4, "idle_share_of_workers": 4 / 9},
    says=(
        "of 90 batches of an epoch one worker made 40 and another 5",
        "The first had no more data after 11 % of it",
        "2 of 4 make the last quarter",
        "get_worker_info()",
    ),
    silent={
        "dealt out evenly": dealt(EVEN),
        "as many shards for each": dealt(None, n_shards=8),
        "many shards": dealt(None, n_shards=101),
        "the loop does not wait": dealt(input_=0.0),
        "map-style": dealt(kind="map"),
        "one worker": dealt(n=1),
        "fewer shards than workers are idle workers": dealt(None, n_shards=3),
    },
    missing={
        "no epoch seen, no shards known": dealt(None),
        "of another pool": dealt(replace(SEEN, batches=(40, 5), ended_s=(9.0, 1.0))),
        "no loader": replace(dealt(), loaders=()),
    },
)


def test_uneven_shards() -> None:
    check_fires(UNEVEN)
    check_silent(UNEVEN)


def test_the_number_of_shards_tells_before_an_epoch_was_seen() -> None:
    """Five for four workers: one reads two, three read one and idle half of the epoch."""
    finding = uneven_shards(dealt(None, n_shards=5))
    assert finding is not None
    assert finding.severity is Severity.LOW
    assert finding.evidence["idle_share_of_workers"] == 1 - 5 / 8
    assert "5 shards are dealt out whole to 4 workers: 1 of them read 2, the others 1" in (
        finding.summary
    )
    assert "to_iterable_dataset(num_shards=32)" in (finding.advice or "")


def test_what_was_seen_of_an_epoch_counts_more_than_the_number_of_shards() -> None:
    assert uneven_shards(dealt(EVEN, n_shards=5)) is None


def test_uneven_shards_are_not_cured_by_more_workers() -> None:
    pool = workers(batch_ms=60.0, n_workers=4)
    found = {f.kind for f in find(replace(dealt(), workers=pool))}
    assert Kind.UNEVEN_SHARDS in found
    assert Kind.TOO_FEW_WORKERS not in found
    assert Kind.TOO_FEW_WORKERS in {f.kind for f in find(replace(dealt(EVEN), workers=pool))}
    guessed = {f.kind for f in find(replace(dealt(None, n_shards=5), workers=pool))}
    assert {Kind.UNEVEN_SHARDS, Kind.TOO_FEW_WORKERS} <= guessed


def labelled(
    n: int = 4,
    of_one: int = 4,
    labels: int = 3,
    *,
    kind: str = "iterable",
    sampler: str = "",
    library: Any = None,
) -> Facts:
    record = loader(
        kind=kind,
        sampler=sampler,
        stream=StreamRecord(library=library) if library else None,
        labels=LabelsRecord(path="[1]", n_batches=n, n_of_one_label=of_one, n_labels=labels),
    )
    return replace(healthy(), loaders=(record,))


COLLAPSED = Case(
    rule=shuffle_collapsed,
    ill=labelled(),
    share=None,
    severity=Severity.MODERATE,
    evidence={"n_batches": 4, "n_labels": 3, "labels": "[1]"},
    says=("each of the first 4 batches holds one label only in [1]", "buffer of samples"),
    silent={
        "mixed": labelled(of_one=0),
        "one of them by chance": labelled(of_one=3),
        "one label in all of the data": labelled(labels=1),
        "a sampler of the user's own": labelled(kind="map", sampler="ByClass"),
        "shuffled": labelled(kind="map", sampler="RandomSampler"),
    },
    missing={
        "no labels": healthy(),
        "too few batches": labelled(n=3, of_one=3),
        "no loader": replace(healthy(), loaders=()),
    },
)


def test_shuffle_collapsed() -> None:
    check_fires(COLLAPSED)
    check_silent(COLLAPSED)


def test_how_to_shuffle_is_in_the_words_of_what_reads_the_data() -> None:
    stored = shuffle_collapsed(labelled(kind="map", sampler="SequentialSampler"))
    assert stored is not None
    assert "shuffle=True" in (stored.advice or "")
    for library, words in (
        ("datasets", "buffer_size"),
        ("webdataset", "shardshuffle"),
        ("litdata", "litdata.StreamingDataset"),
        ("streaming", "StreamingDataset(…, shuffle=True)"),
    ):
        finding = shuffle_collapsed(labelled(library=library))
        assert finding is not None
        assert words in (finding.advice or "")
