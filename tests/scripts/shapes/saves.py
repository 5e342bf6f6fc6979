# Trains, prints and saves; ends with an exit code of its own. argv[1]: file to save to.
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.randn(8) + index, index % 2


torch.manual_seed(7)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Noise(), 4, shuffle=True, num_workers=int(sys.argv[2]))
for epoch in range(6):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item(), torch.rand(1).item(), flush=True)
with open(sys.argv[1], "w") as file:
    file.write(str([p.tolist() for p in model.parameters()]))
print("saved", file=sys.stderr)
sys.exit(5)
