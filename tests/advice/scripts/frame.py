"""Rows of a pandas frame, one Series each."""

import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, frame, features):
        self.frame = frame
        self.features = features

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        row = self.frame.iloc[index]  # hot line
        x = torch.tensor(row[self.features].to_numpy("float32"))
        return x, int(row["label"])


frame = pd.DataFrame({"a": range(32), "b": [i / 2 for i in range(32)], "label": [0, 1] * 16})
loader = DataLoader(Table(frame, ["a", "b"]), batch_size=8, shuffle=False)  # train loader
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
total = 0.0
for x, y in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += float(x.sum()) + float(y.sum())
print(total)
