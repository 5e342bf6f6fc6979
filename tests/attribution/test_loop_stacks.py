"""Stack samples of the loop: what is its own work, where it is, and what it calls."""

from __future__ import annotations

from typing import Any

import pytest

from loaderdoctor.attribution.loop_stacks import loop_line_facts
from loaderdoctor.facts.host import LoopLineFacts
from loaderdoctor.instrument.wire.measured import (
    FramePlace,
    StackPlace,
    StackRecord,
    Stage,
)

MODULE = FramePlace(file="/u/train.py", line=90, function="<module>", code="main()")


def at(line: int, code: str = "", function: str = "train") -> FramePlace:
    return FramePlace(file="/u/train.py", line=line, function=function, code=code or None)


def seen(n: int, *frames: FramePlace, stage: Stage = "own", **what: Any) -> StackPlace:
    return StackPlace(stage=stage, frames=(MODULE, *frames), n=n, **what)


# A step of 100 samples: fetch, copy, forward, backward, optimizer at lines 10, 12, 20, 21, 22.
STEP = (
    seen(10, at(10), stage="fetch", module="torch.utils.data.dataloader"),
    seen(2, at(12, "x = x.to(device)"), call="x.to", operator=True),
    seen(20, at(20), at(5, function="Net.forward"), stage="forward"),
    seen(20, at(21), stage="backward", module="torch._tensor", call="loss.backward"),
    seen(8, at(22), stage="optimizer", module="torch.optim.optimizer", call="optimizer.step"),
    seen(1, at(11), stage="optimizer", module="torch._compile", call="optimizer.zero_grad"),
)


def facts(*places: StackPlace, gpu: bool = False, n_more: int = 0) -> LoopLineFacts:
    everything = (*STEP, *places)
    n = sum(x.n for x in everything if x.stage != "outside") + n_more
    n_outside = sum(x.n for x in everything if x.stage == "outside")
    record = StackRecord(n=n, n_outside=n_outside, places=everything)
    found = loop_line_facts([record], has_accelerator=gpu)
    assert found is not None
    return found


def test_a_loop_over_elements_is_named_by_its_function() -> None:
    call = at(11, "tokens = shape_words(x)")
    found = facts(
        seen(20, call, at(30, function="shape_words"), call="int"),
        seen(18, call, at(31, function="shape_words")),
        seen(2, call, at(29, function="shape_words"), call="batch.tolist"),
    )
    place = found.places[0]
    assert (place.named, place.at.function, place.at.line) == ("function", "shape_words", 30)
    assert (place.called_from.line, place.called_from.code) == (11, "tokens = shape_words(x)")
    assert (place.what, place.n_samples) == ("elements", 40)
    assert place.between == ("the fetch", "the forward pass")
    assert found.own_share == pytest.approx(40 / found.n_samples)


def test_samples_spread_over_lines_of_the_loop_name_the_library() -> None:
    found = facts(
        *(
            seen(12, at(line), module="pandas.core.indexing", call="frame.iloc[]")
            for line in range(13, 17)
        )
    )
    place = found.places[0]
    assert (place.named, place.library, place.what) == ("library", "pandas", "table")
    assert (place.calls, place.n_samples) == ("frame.iloc[]", 48)


def test_one_line_that_calls_a_library_is_named_with_the_call() -> None:
    found = facts(
        seen(
            30,
            at(23, "best = copy.deepcopy(model.state_dict())"),
            module="copy",
            call="copy.deepcopy",
        ),
        seen(3, at(23), module="torch.nn.modules.module", call="model.state_dict"),
    )
    place = found.places[0]
    assert (place.named, place.at.line, place.calls) == ("line", 23, "copy.deepcopy")
    assert (place.what, place.between) == ("deepcopy", ("the optimizer's step", "the next fetch"))


def test_of_functions_that_call_one_another_the_innermost_is_named() -> None:
    log, text = at(24, function="log"), at(40, function="table_of")
    found = facts(
        seen(30, at(23), log, text, call="rows.append"), seen(3, at(23), log, call="open")
    )
    assert found.places[0].at.function == "table_of"


def test_operators_of_torch_that_the_loop_calls_are_not_its_own_work() -> None:
    found = facts(
        seen(40, at(20), call="torch.cat", operator=True),
        seen(40, at(20), operator=True),  # `+` of tensors
        seen(5, at(20), module="torch.functional", call="torch.einsum"),
    )
    assert found.operator_share == pytest.approx(87 / found.n_samples)
    assert found.places == ()
    assert found.own_share == 0.0


def test_reading_a_value_waits_for_an_accelerator_and_is_work_without_one() -> None:
    item = seen(30, at(25, "total += loss.item()"), call="loss.item")
    on_gpu, on_cpu = facts(item, gpu=True), facts(item)
    assert on_gpu.places == ()
    assert [x.what for x in on_gpu.waits] == ["item"]
    assert on_gpu.waiting_share == pytest.approx(30 / on_gpu.n_samples)
    assert [x.what for x in on_cpu.places] == ["item"]
    assert on_cpu.waiting_share == 0.0


def test_a_place_before_the_copy_is_told_so_where_there_is_a_device() -> None:
    work = seen(30, at(11, "x = prepare(x)"), module="numpy", call="np.pad")
    assert facts(work, gpu=True).places[0].between == ("the fetch", "the copy to the device")


def test_work_between_epochs_is_kept_apart() -> None:
    outside = FramePlace(file="/u/train.py", line=80, function="main", code="torch.save(m, f)")
    found = facts(
        StackPlace(
            stage="outside", frames=(MODULE, outside), n=40, module="torch.serialization",
            function="save", call="torch.save",
        )
    )  # fmt: skip
    assert found.places == ()
    assert (found.outside[0].what, found.outside[0].share) == ("save", 1.0)


@pytest.mark.parametrize(
    ("module", "call", "what"),
    [
        ("torch.serialization", "torch.save", "save"),
        ("numpy.lib._npyio_impl", "np.save", "save"),
        ("numpy.lib._npyio_impl", "np.load", "files"),
        ("numpy.lib._histograms_impl", "np.histogram", "numpy"),
        ("sklearn.metrics", "f1_score", "metrics"),
        ("matplotlib.pyplot", "plt.plot", "plot"),
        ("wandb.sdk", "wandb.log", "tracking"),
        ("logging", "log.info", "print"),
        (None, "print", "print"),
        ("torch._tensor", "print", "print"),
        (None, "time.sleep", "sleep"),
        (None, "np.fft.fft", "numpy"),
        ("torch._tensor", None, "library"),
        ("torch.utils.tensorboard.writer", "writer.add_scalar", "tracking"),
        ("somebody.thing", "thing.do", "library"),
        (None, "counts.append", "elements"),
        (None, "tree.query", "library"),
        ("random", "random.shuffle", "elements"),
    ],
)
def test_what_a_line_calls_says_what_it_does(
    module: str | None, call: str | None, what: str
) -> None:
    found = facts(seen(40, at(23), module=module, call=call))
    expected = [] if what == "library" and module == "torch._tensor" else [what]
    assert [x.what for x in found.places] == expected


def test_too_few_samples_say_nothing() -> None:
    few = StackRecord(n=20, places=(seen(20, at(23), call="print"),))
    assert loop_line_facts([few], has_accelerator=False) is None
    assert loop_line_facts([], has_accelerator=False) is None
    assert facts(seen(5, at(23), call="print")).places == ()
    assert loop_line_facts([few, few], has_accelerator=False) is not None
