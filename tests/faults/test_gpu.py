"""A real CUDA out of memory in a trial."""

from __future__ import annotations

import pytest

from tests.faults.running import Place, script

pytestmark = pytest.mark.gpu

# More than any device has, once a batch is larger than eight; some of it was had before.
HUNGRY = """
class Hungry(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] > 8:
            held = torch.empty(1 << 30, dtype=torch.uint8, device=x.device)
            torch.empty(1 << 44, dtype=torch.uint8, device=x.device)
        return x.cuda()

def fault(where, n):
    if where == "loaded":
        import __main__
        __main__.model = torch.nn.Sequential(Hungry(), __main__.model).cuda()
        __main__.optimizer = torch.optim.SGD(__main__.model.parameters(), lr=0.01)
"""


def test_a_trial_out_of_gpu_memory_fails_and_leaves_none_behind(place: Place) -> None:
    path = script(place.path, HUNGRY)
    path.write_text(path.read_text().replace("for x, y in loader:", "for x, y in on_gpu(loader):"))
    helper = "def on_gpu(batches):\n    for x, y in batches:\n        yield x.cuda(), y.cuda()\n\n"
    path.write_text(path.read_text().replace("class Samples", helper + "class Samples"))
    done = place.run(
        "sweep", "--grid", "batch_size=4,8,16", "--budget", "20", "--no-ablation", "--rerun",
        "--output", "out", path,
    )  # fmt: skip
    sound = done.check_one_trial_failed("batch_size", 16, words="out of memory", sound=8)
    peak = sound.gpu_peak_allocated_bytes
    assert peak is not None
    assert peak < 1 << 28  # the gigabyte of the failed trial is gone
