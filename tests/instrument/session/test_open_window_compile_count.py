"""torch.compile's own counters tell what was compiled, how long, and why; nothing is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from loaderdoctor.instrument.session.open_window import CompileCount


@pytest.mark.slow
def test_code_made_anew_for_a_shape_is_counted_with_its_reason() -> None:
    torch._dynamo.reset()

    @torch.compile(dynamic=False, backend="eager")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double(torch.zeros(3))
    count = CompileCount()
    assert count.since() is None
    double(torch.zeros(3))
    assert count.since() is None
    for n in (4, 5):
        double(torch.zeros(n))
    found = count.since()
    assert found is not None
    assert found.n == 2
    assert found.ns > 0
    assert found.reason is not None and "size mismatch" in found.reason
    assert found.function is not None and found.function.startswith(
        "double (test_open_window_compile_count.py"
    )
    torch._dynamo.reset()


def test_the_compiler_is_not_loaded_for_it() -> None:
    code = (
        "import sys, torch\n"
        "from loaderdoctor.instrument.session.open_window import CompileCount\n"
        "before = 'torch._dynamo' in sys.modules\n"
        "assert CompileCount().since() is None\n"
        "assert ('torch._dynamo' in sys.modules) is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
