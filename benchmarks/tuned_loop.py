"""A loop for `tune_vs_sweep.py`: its kind, steps, epochs; the loader's settings in SETTINGS."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

# What a sample waits for (storage) and burns (decoding), what a step computes: milliseconds; batch
# size; floats of a sample; the loader's own settings.
KINDS = {
    "waits, no workers": (1.5, 0.0, 6.0, 16, 64, {}),
    "waits, one worker": (1.5, 0.0, 6.0, 16, 64, {"num_workers": 1}),
    "burns, no workers": (0.0, 1.0, 9.0, 12, 64, {}),
    "instant, workers": (0.0, 0.0, 4.0, 16, 64, {"num_workers": 4}),
    "large, pageable": (0.0, 0.0, 12.0, 64, 150_528, {"num_workers": 2}),
}
WAIT_MS, BURN_MS, STEP_MS, BATCH, WIDTH, OWN = KINDS[sys.argv[1]]
N_STEPS, N_EPOCHS = int(sys.argv[2]), int(sys.argv[3])
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def burn(ms: float) -> None:
    """CPU time of this thread."""
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Made of nothing, at a cost."""

    def __len__(self) -> int:
        return N_STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if WAIT_MS:
            time.sleep(WAIT_MS / 1e3)
        if BURN_MS:
            burn(BURN_MS)
        return torch.full((WIDTH,), index % 7 / 7.0), index % 10


def main() -> None:
    """Print the milliseconds a step of each epoch, its start included."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 10).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    settings = {**OWN, **json.loads(os.environ.get("SETTINGS", "{}"))}
    loader = DataLoader(Samples(), BATCH, shuffle=True, **settings)
    weights = torch.randn(4096, 4096, device=DEVICE)
    n_products = 0
    if DEVICE.type == "cuda":
        for n in (3, 20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(n):
                weights @ weights
            torch.cuda.synchronize()
        n_products = max(1, round(STEP_MS * 20 / 1e3 / (time.perf_counter() - began)))
    step_ms = []
    for _ in range(N_EPOCHS):
        began = time.perf_counter()
        for x, y in loader:
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for _ in range(n_products):
                weights @ weights
            if not n_products:
                burn(STEP_MS)
        if n_products:
            torch.cuda.synchronize()
        step_ms.append((time.perf_counter() - began) * 1e3 / N_STEPS)
    print(json.dumps({"step_ms": step_ms}), flush=True)


if __name__ == "__main__":
    main()
