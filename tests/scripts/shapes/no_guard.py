# No guard, sys.argv read by hand, a relative path, then another folder.
import os
import pathlib
import sys

from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader

n_epochs, rate = int(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text()
os.makedirs("run", exist_ok=True)
os.chdir("run")
print("argv", sys.argv[1:], "rate", rate.strip())

loader = DataLoader(SlowSamples(), 4)
model, optimizer = model_and_optimizer()
for group in optimizer.param_groups:
    group["lr"] = float(rate)
for _ in range(n_epochs):
    for x, y in loader:
        train_step(model, optimizer, x, y)
    pathlib.Path("done.txt").write_text("one epoch\n")
