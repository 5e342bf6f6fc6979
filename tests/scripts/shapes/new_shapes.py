# argv: what a step does anew for what its batch is. Making a batch costs nothing, but for "loader".
import functools
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


def busy(ms):
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


class Lengths(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        if how == "loader":
            busy(20)
        if how in ("twenty", "compile_twenty"):
            return torch.full((100 + 7 * (i % 20), 40), 0.5)
        if how == "changes":
            return torch.full((100 if i < 10 else 400, 40), 0.5)
        if how == "numbers":
            return {"x": torch.full((64, 40), 0.5), "n": torch.tensor(1 + 7 * i % 30)}
        if how == "nested":
            x = torch.full((100 + i, 40), 0.5)
            return {"views": [x, {"mask": x[:, 0] > 0}], "name": f"sample {i}"}
        return torch.full((100 + i, 40), 0.5)


@functools.lru_cache(None)
def plan(shape):
    busy(20)
    return 1.0


forward = model
if how.startswith("compile"):
    torch._dynamo.config.recompile_limit = 10**6
    torch._dynamo.config.accumulated_recompile_limit = 10**6
    dynamic = how == "compile_dynamic"
    forward = torch.compile(model, dynamic=dynamic, backend="eager")

for _ in range(100):
    for batch in DataLoader(Lengths(), batch_size=None):
        factor = 1.0
        if how == "numbers":
            busy(int(batch["n"]))
            batch = batch["x"]
        elif how == "nested":
            batch = batch["views"][0]
        if how in ("plan", "twenty", "nested"):
            factor = plan(tuple(batch.shape))
        elif how == "changes":
            busy(len(batch) / 20)
        if how in ("twenty", "compile_dynamic"):
            busy(5)  # so that making a batch is next to nothing
        optimizer.zero_grad()
        (forward(batch) * factor).square().mean().backward()
        optimizer.step()
