"""A dataset that copies each sample with all that it holds."""

import torch
from copy import deepcopy
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __init__(self):
        self.graphs = [{"x": torch.full((4,), float(i)), "edges": [0, 1]} for i in range(32)]

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        graph = deepcopy(self.graphs[i])  # hot line
        return graph["x"]


loader = DataLoader(Graphs(), batch_size=8)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
total = 0.0
for x in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    model(x).mean().backward()
    optimizer.step()
    total += float(x.sum())
print(total)
