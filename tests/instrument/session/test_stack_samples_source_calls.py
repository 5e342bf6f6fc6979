"""What a line calls, read from its source at one instruction."""

from __future__ import annotations

import dis
import sys
from pathlib import Path

import pytest

from loaderdoctor.instrument.session.stack_samples import called_at, source_line

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="code knows no columns")


def calls(tmp_path: Path, source: str) -> dict[str | None, bool]:
    """Every call of the source, and whether it may be an operator of torch."""
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="utf-8")
    code = compile(source, str(path), "exec")
    found = {}
    for instruction in dis.get_instructions(code):
        call = called_at(code, instruction.offset)
        if call is not None and instruction.opname in ("CALL", "BINARY_OP", "BINARY_SUBSCR"):
            found[call.name] = call.operator
    return found


@pytest.mark.parametrize(
    ("source", "name", "operator"),
    [
        ("loss.item()", "loss.item", False),
        ("y = torch.cat([a, b])", "torch.cat", True),
        ("torch.save(model, path)", "torch.save", False),
        ("x = logits[0].argmax()", "….argmax", True),
        ("x = x.to(device)", "x.to", True),
        ("print(a, b)", "print", False),
        ("z = (a + b)", None, True),
        ("row = frame.iloc[i]", "frame.iloc[]", True),
        ("f(\n    a,\n    b,\n)", "f", False),
        ("ü = größe.item()", "größe.item", False),
    ],
)
def test_a_call_is_named_as_its_source_has_it(
    source: str, name: str | None, operator: bool, tmp_path: Path
) -> None:
    assert calls(tmp_path, source)[name] is operator


def test_without_source_nothing_is_told() -> None:
    code = compile("f(x)", "<nowhere>", "exec")
    assert all(called_at(code, i.offset) is None for i in dis.get_instructions(code))
    assert source_line("<nowhere>", 1) is None
