"""What is written for a line of the loop's own, and for samples kept before a transform."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.advice.fit_code import fitted
from loaderdoctor.advice.fit_transforms import cached_before
from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind, Severity
from tests.advice.printed import SCRIPTS, applied, blocks, facts_of, finding, marked

LOOP = """\
import torch
from torch.utils.data import DataLoader
data = [0.0] * 32
loader = DataLoader(data, batch_size=8)  # train loader
losses, total, sums = [], 0.0, {"loss": 0.0}
{fold}:
    for {step} in {over}:  # train loop
        loss = x.mean()
        for i, value in {inner}:
            {line}  # hot
"""
OUTER = "for fold, seed in enumerate((1, 2))"


def looping(
    line: str,
    *,
    fold: str = OUTER,
    step: str = "step, x",
    over: str = "enumerate(loader)",
    inner: str = "enumerate(x)",
) -> Facts:
    text = LOOP.replace("{line}", line).replace("{fold}", fold).replace("{step}", step)
    text = text.replace("{over}", over).replace("{inner}", inner)
    return facts_of(Path("loop.py"), text=text)


def of_hot_line(facts: Facts, what: str) -> Finding:
    assert facts.script is not None
    (text,) = facts.script.sources.values()
    return Finding(
        kind=Kind.WORK_BETWEEN_STEPS, severity=Severity.HIGH, share=0.5, summary="It costs.",
        evidence={"what": what, "line": f"loop.py:{marked(text, 'hot')} (main)"},
    )  # fmt: skip


def code_for(facts: Facts, what: str) -> str | None:
    return fitted(facts, of_hot_line(facts, what))


@pytest.mark.parametrize("what", ["print", "tracking", "plot"])
def test_steps_are_counted_by_the_loop_over_the_loader(what: str) -> None:
    code = code_for(looping("print(loss)"), what)
    assert code is not None and "if step % 100 == 0:" in code
    assert code_for(looping("print(loss)", step="x", over="loader"), what) is None


@pytest.mark.parametrize("what", ["files", "save", "network", "process"])
def test_what_leaves_the_process_is_not_made_rare(what: str) -> None:
    assert code_for(looping("file.write(str(value))"), what) is None


def test_a_sum_under_a_plain_name_stays_on_the_device() -> None:
    facts = looping("total += loss.item()")
    code = code_for(facts, "item")
    assert code is not None and "total = total + summand(loss)" in code
    (advice,) = code_advice(facts, [of_hot_line(facts, "item")])
    assert advice.code == code and "tensor" in (advice.caution or "")


@pytest.mark.parametrize(
    "line",
    [
        "losses.append(loss.item())",
        "loss.item()",
        'sums["loss"] += loss.item()',
        "self.total += loss.item()",
        "total -= loss.item()",
        "total *= loss.item()",
    ],
)
def test_values_that_are_kept_stay_numbers(line: str) -> None:
    assert code_for(looping(line), "item") is None


def images(old: str = "", new: str = "", dataset: str = "Images") -> Facts:
    text = (SCRIPTS / "images.py").read_text()
    assert old in text
    return facts_of(SCRIPTS / "images.py", text=text.replace(old, new), loader={"dataset": dataset})


def test_a_dataset_without_a_transform_of_its_own_is_not_taken_apart() -> None:
    assert cached_before(images(), "Flip") is not None
    for other in ("Subset", "ConcatDataset", "CIFAR10"):  # nothing is imported from torchvision
        assert cached_before(images(dataset=other), "Flip") is None
    elsewhere = images("return self.transform(self.data[i])", "return self.made(self.data[i])")
    assert cached_before(elsewhere, "Flip") is None
    imported = ("import torch\n", "import torch\nimport torchvision\n")
    assert cached_before(images(*imported, dataset="CIFAR10"), "Flip") is not None
    assert cached_before(images(*imported, dataset="Subset"), "Flip") is None


def test_a_sum_is_a_number_again_behind_the_loop_over_the_loader() -> None:
    facts = looping("total += loss.item()")
    code = code_for(facts, "item")
    assert code is not None
    assert facts.script is not None
    (text,) = facts.script.sources.values()
    after = applied(text, blocks(code)).splitlines()
    again = "    total = total.item() if torch.is_tensor(total) else total  # a number again"
    at = after.index(again)
    assert after[at - 1].lstrip().startswith("total = total + summand(loss)")


SUMS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(600, 1)))  # train loader
total, history = 0, []
for (x,) in loader:  # train loop
    loss = x.mean().bfloat16()
    total += loss.item()  # hot
    said = ""
    history.append(said)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.mean().bfloat16()", "x.mean().bfloat16()"),
        ("x.mean().bfloat16()", "x.view(1, 1) / 3"),
        ("x.mean().bfloat16()", "(x > 0).sum()"),
        ("x.mean().bfloat16()", "(x > 0).sum().to(torch.uint8)"),
        ('said = ""', 'said = f"{total}, {total / 7:.3f}"'),
        ('said = ""', "if len(history) % 100 == 0:\n        total = 0\n    said = 1"),
    ],
)
def test_a_sum_on_the_device_is_the_number_that_it_was(old: str, new: str) -> None:
    text = SUMS.replace(old, new)
    code = fitted(
        facts_of(Path("sum.py"), text=text), finding(Kind.SYNC_EVERY_STEP, text, "sum.py")
    )
    assert code is not None
    own: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    exec(compile(text, "own", "exec"), own)  # the tests' own
    exec(compile(applied(text, blocks(code)), "ours", "exec"), ours)
    assert own["total"] == ours["total"] and type(own["total"]) is type(ours["total"])
    assert own["history"] == ours["history"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("append(said)", "append(total)"),
        ("append(said)", "append(total if said else 0)"),
        ("append(said)", "append(f'{total!r}')"),
        ("append(said)", "append(f'{math.sqrt(total)}')"),
        ("append(said)", "append(json.dumps(total))"),
        ("total, history = 0, []", "total, history = 0, []\ndef tell():\n    print(total)"),
        (
            "for (x,) in loader:",
            "batches = iter(loader)\nwhile (x := next(batches, [None])[0]) is not None:",
        ),
        ("import torch\n", "import torch as th\n"),
    ],
)
def test_a_sum_that_is_read_as_a_number_stays_one(old: str, new: str) -> None:
    text = SUMS.replace(old, new)
    assert text != SUMS
    told = finding(Kind.SYNC_EVERY_STEP, text, "sum.py")
    assert fitted(facts_of(Path("sum.py"), text=text), told) is None


@pytest.mark.parametrize(
    "line", ["print(n := x.mean().item())", "print(next(batches))", "print(scheduler.step())"]
)
def test_what_does_more_than_tell_is_not_made_rare(line: str) -> None:
    assert code_for(looping("print(x.mean().item())"), "print") is not None
    assert code_for(looping(line), "print") is None


def test_what_is_made_rare_keeps_its_texts_and_the_scripts_indent() -> None:
    text = (
        "from torch.utils.data import DataLoader\nloader = DataLoader([0.0] * 9)  # train loader\n"
        "for step, x in enumerate(loader):  # train loop\n"
        "\tprint('a \\\nb', f'''c\n{step}\n d''',\n\t\tx)  # hot print\n"
    )
    facts = facts_of(Path("loop.py"), text=text)
    code = fitted(facts, finding(Kind.WORK_BETWEEN_STEPS, text, "loop.py"))
    assert code is not None
    after = applied(text, blocks(code))
    (guarded,) = (x for x in ast.walk(ast.parse(after)) if isinstance(x, ast.If))
    (loop,) = (x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.For))
    assert ast.dump(guarded.body[0]) == ast.dump(loop.body[0])
    assert "\n\tif step % 100 == 0:\n\t\tprint(" in after


def test_batches_are_kept_where_they_fit_and_a_pass_has_an_end() -> None:
    path = SCRIPTS / "audio.py"
    text = path.read_text()
    slow = finding(Kind.COLLATE_BOUND, text, path.name)

    def code(*, available: int = 2**30, text: str = text, **loader: Any) -> str | None:
        facts = facts_of(path, text=text, loader=loader)
        assert facts.machine is not None
        machine = replace(facts.machine, memory_available_bytes=available)
        (advice,) = code_advice(replace(facts, machine=machine), [slow])
        return advice.code

    written = code()
    assert written is not None
    after = applied(text, blocks(written))
    exec(compile(after, "audio.py", "exec"), {"__name__": "__main__"})  # the tests' own
    assert code(available=100) is None
    assert code(kind="iterable") is None
    told = "for epoch in range(2):\n    loader.dataset.set_epoch(epoch)\n    for clips,"
    loop = text[text.index("for clips, labels") :]
    indented = loop.replace("\n    ", "\n        ").replace("for clips,", told)
    assert code(text=text.replace(loop, indented)) is None


@pytest.mark.parametrize("body", ["pass", "x: object; y: object"])
def test_a_class_on_one_line_gets_no_method(body: str) -> None:
    path = SCRIPTS / "batch_class.py"
    text = path.read_text()
    unpinned = finding(Kind.PIN_INEFFECTIVE, text, path.name)
    assert fitted(facts_of(path), unpinned) is not None
    own = text[text.index("class Batch:") : text.index("rows =")]
    told = text.replace(own, f"class Batch: {body}\n\n\n")
    assert fitted(facts_of(path, text=told), unpinned) is None


def test_the_iterator_that_is_made_once_is_that_of_the_loader() -> None:
    text = (SCRIPTS / "recreated.py").read_text()
    wanted = finding(Kind.ITERATOR_RECREATED, text, "recreated.py")
    code = fitted(facts_of(SCRIPTS / "recreated.py"), wanted)
    assert code is not None and "forever(loader)" in code
    other = text.replace("next(iter(loader))  # train loop", "next(iter(validation))")
    read = "    validation = loader  # train loop\n    for step in"
    other = other.replace("    for step in", read)
    assert fitted(facts_of(SCRIPTS / "recreated.py", text=other), wanted) is None
