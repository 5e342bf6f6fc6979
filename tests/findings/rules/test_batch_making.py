"""Rules about making a batch: its order, sampler, collating and formats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice.prescription import code_advice, prescribe
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.line_names import where
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.batch_making import collate_bound, dataset_format_bound
from loaderdoctor.findings.rules.saturated import head_of_line_stall, overhead_bound_loader
from loaderdoctor.findings.rules.streams import sampler_bound
from loaderdoctor.instrument.wire.records import TensorRecord
from tests.findings.builders import healthy, line, loader, step, with_exposed, workers
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import LOW

VOLUMES = TensorRecord(
    path="[0]", shape=(16, 16, 256, 256), dtype="float32", n_bytes=16 * 16 * 256 * 256 * 4
)

CASES = (
    Case(
        rule=head_of_line_stall,
        ill=with_exposed(
            input_=0.6,
            workers=workers(
                head_of_line_ms=5.0,
                sample_ms_quantiles=(0.2, 0.2, 0.2, 0.3, 0.4, 9.0, 20.0, 21.0),
            ),
        ),
        share=0.5,
        severity=Severity.HIGH,
        evidence={"head_of_line_ms_per_step": 5.0, "p99_sample_ms": 20.0},
        says=("For 5.00 of 10.0 ms a step", "0.30 ms at the median, 20.0 ms at the 99th"),
        silent={
            "no batch waits": with_exposed(input_=0.6),
            "any order already": with_exposed(
                input_=0.6,
                workers=workers(head_of_line_ms=5.0),
                loaders=(loader(settings={"in_order": False}),),
            ),
            "one worker": with_exposed(
                input_=0.6, workers=workers(n_workers=1, head_of_line_ms=5.0)
            ),
            LOW: healthy(workers=workers(head_of_line_ms=5.0)),
        },
        missing={
            "stall": with_exposed(input_=0.6, workers=workers(head_of_line_ms=None)),
            "workers": with_exposed(input_=0.6, workers=None),
        },
    ),
    Case(
        rule=sampler_bound,
        ill=with_exposed(input_=0.45, workers=workers(sampler_ms=4.0)),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"sampler_ms_per_batch": 4.0, "sampler": "RandomSampler"},
        says=("RandomSampler takes 4.00 ms per batch", "workers can't take that over"),
        silent={
            "a fast sampler": with_exposed(input_=0.45),
            LOW: healthy(workers=workers(sampler_ms=4.0)),
        },
        missing={"sampler": with_exposed(input_=0.45, workers=workers(sampler_ms=None))},
    ),
    Case(
        rule=collate_bound,
        ill=with_exposed(
            input_=0.5,
            loaders=(loader(collate="pad_and_tokenise"),),
            workers=workers(
                batch_ms=40.0,
                collate_ms=30.0,
                lines=(
                    line(function="pad", phase="collate", phase_share=0.75),
                    line(line=31, n_stack_samples=99, phase_share=0.25),
                ),
            ),
        ),
        share=0.375,
        severity=Severity.HIGH,
        evidence={"collate_share_of_batch": 0.75, "line": "data.py:30 (pad)"},
        says=("pad_and_tokenise takes 30.0 ms of the 40.0 ms", "75 % of it", "in the workers"),
        silent={
            "fetching costs more": with_exposed(input_=0.5, workers=workers(batch_ms=40.0)),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(batch_ms=2.0, collate_ms=1.5)
            ),
            LOW: healthy(workers=workers(batch_ms=40.0, collate_ms=30.0)),
        },
        missing={"collate": with_exposed(input_=0.5, workers=workers(collate_ms=None))},
    ),
    Case(
        rule=collate_bound,
        ill=with_exposed(
            input_=0.5,
            loaders=(loader(batch=(VOLUMES,)),),
            workers=workers(batch_ms=40.0, collate_ms=30.0),
        ),
        share=0.375,
        severity=Severity.HIGH,
        evidence={"collate": "default_collate", "batch_bytes": VOLUMES.n_bytes},
        says=("default_collate takes 30.0 ms", "It copies 64.0 MiB a batch", "float16 or uint8"),
    ),
    Case(
        rule=collate_bound,
        ill=with_exposed(
            input_=0.5,
            loaders=(loader(collate="Collater", collate_library="torch_geometric"),),
            workers=workers(batch_ms=40.0, collate_ms=30.0),
        ),
        share=0.375,
        severity=Severity.HIGH,
        evidence={"collate": "Collater", "collate_library": "torch_geometric"},
        says=("Collater takes 30.0 ms", "It is code of torch_geometric", "keep the batches"),
    ),
    Case(
        rule=dataset_format_bound,
        ill=with_exposed(
            input_=0.5,
            workers=workers(
                batch_ms=40.0,
                lines=(line(code="return torch.tensor(row)", share=0.7), line(share=0.2)),
            ),
        ),
        share=0.35,
        severity=Severity.HIGH,
        evidence={"conversion_share_of_batch": 0.7, "line_code": "return torch.tensor(row)"},
        says=(
            "70 % (70 of 100 stack samples of fetching) of making a batch is making arrays",
            "data.py:30",
        ),
        silent={
            "other hot lines": with_exposed(
                input_=0.5, workers=workers(batch_ms=40.0, lines=(line(),))
            ),
            "a small part": with_exposed(
                input_=0.5,
                workers=workers(batch_ms=40.0, lines=(line(code="torch.tensor(y)", share=0.1),)),
            ),
            "the pool keeps up": with_exposed(
                input_=0.5, workers=workers(lines=(line(code="torch.tensor(x)"),))
            ),
            LOW: healthy(workers=workers(batch_ms=40.0, lines=(line(code="torch.tensor(x)"),))),
        },
        missing={"lines": with_exposed(input_=0.5, workers=workers(batch_ms=40.0))},
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/me/mnist.py", "mnist.py"),
        ("/v/site-packages/torchvision/datasets/mnist.py", "torchvision/datasets/mnist.py"),
        ("C:\\env\\Lib\\site-packages\\PIL\\Image.py", "PIL/Image.py"),
        ("/v/site-packages/loaderdoctor/_recipes/mnist/train.py", "train.py"),
    ],
)  # fmt: skip
def test_a_package_s_line_does_not_pass_for_the_users(file: str, shown: str) -> None:
    hotspot = line(file=file, line=7, function="f")
    assert where(hotspot) == f"{shown}:7 (f)"


@pytest.mark.parametrize(
    ("collate", "library", "title", "never"),
    [
        ("Collater", "torch_geometric", "Collate once, and keep the batches", "tokenis"),
        (
            "DataCollatorWithPadding",
            "transformers",
            "Collate once, and keep the batches",
            "padding",
        ),
        ("mine", None, "Do per-sample work once, ahead of training", "It is code of"),
        ("default_convert", "torch", "Slice whole batches out of memory", "tokenis"),
    ],
)
def test_advice_about_collating_is_of_whose_code_it_is(
    collate: str, library: str | None, title: str, never: str
) -> None:
    facts = with_exposed(
        input_=0.5,
        loaders=(loader(collate=collate, collate_library=library, batch=()),),
        workers=workers(batch_ms=40.0, collate_ms=30.0),
    )
    finding = collate_bound(facts)
    assert finding is not None and finding.advice is not None
    assert never not in finding.advice
    (advice,) = code_advice(facts, [finding])
    assert advice.title.startswith(title)
    assert advice.code is None and never not in advice.idea


def test_no_code_replaces_a_sampler_and_what_it_draws_is_to_be_kept() -> None:
    facts = with_exposed(input_=0.6, workers=workers(sampler_ms=5.0))
    (advice,) = [a for a in prescribe(facts, find(facts)).advice if a.kind is Kind.SAMPLER_BOUND]
    assert advice.code is None and "randperm" not in advice.idea
    assert "Keep what your sampler draws" in (advice.caution or "")


def drawing(sampler: str, *, n_indices: int = 2_000_000, steps_per_epoch: int = 151) -> Facts:
    return with_exposed(
        input_=0.86,
        workers=workers(sampler_ms=7.4),
        loaders=(loader(sampler=sampler, n_samples=2_000_000, n_indices=n_indices, batch_size=64),),
        step=step(steps_per_epoch=steps_per_epoch),
    )


def test_a_sampler_that_draws_for_nothing_is_not_told_to_draw_in_one_call() -> None:
    """Torch's draw 2,000,000 in one call; the loop left each epoch behind 151 batches of 64."""
    finding = sampler_bound(drawing("WeightedRandomSampler"))
    assert finding is not None and finding.advice is not None
    assert "2,000,000 indices for an epoch, of which the loop reads 9,664" in finding.summary
    assert "vectorised" not in finding.summary and "num_samples=9664" in finding.advice
    assert finding.evidence["indices_read"] == 9664
    advice = code_advice(drawing("WeightedRandomSampler"), [finding])
    assert [a.title for a in advice] == ["Draw only the indices that an epoch reads"]


@pytest.mark.parametrize(
    "facts",
    [
        drawing("WeightedRandomSampler", steps_per_epoch=20_000),  # most are read
        drawing("OfTheUser"),  # may draw as it goes
        drawing("WeightedRandomSampler", n_indices=9_664),  # of a larger dataset
    ],
)
def test_other_samplers_are_told_to(facts: Facts) -> None:
    finding = sampler_bound(facts)
    assert finding is not None and "vectorised" in finding.summary
    assert "indices_read" not in finding.evidence


def test_a_permutation_is_drawn_whole_however_few_are_asked_for() -> None:
    finding = sampler_bound(drawing("RandomSampler"))
    assert finding is not None and finding.advice is not None
    assert "num_samples" not in finding.advice and "same pass" in finding.advice


def test_what_goes_by_before_an_epoch_is_no_overhead_of_its_samples() -> None:
    """Batches of 0.13 ms were given for 3.74 ms a step, 3.6 of them before each epoch."""
    tiny = workers(
        n_workers=0, batch_ms=3.0, fetch_ms=2.6, collate_ms=0.4, sample_ms_quantiles=(0.001,) * 8
    )
    alone = with_exposed(input_=0.6, workers=tiny, step=step(steps_per_epoch=100))
    assert overhead_bound_loader(alone) is not None
    of_start = step(steps_per_epoch=100, boundary_ms=600.0, loader_boundary_ms=600.0)
    assert overhead_bound_loader(replace(alone, step=of_start)) is None
