"""The first columns of a row of a frame, by place."""

import pandas
import torch
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, n):
        self.df = pandas.DataFrame({f"c{k}": [float(i + k) for i in range(n)] for k in range(5)})
        self.df["target"] = self.df["c0"] % 2

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        x = self.df.iloc[i].iloc[:5].to_numpy("float32")  # hot line
        return torch.from_numpy(x), self.df.iloc[i]["target"]


def main():
    loader = DataLoader(Table(32), batch_size=8)  # train loader
    total = 0.0
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for x, y in loader:  # train loop
        optimizer.zero_grad(set_to_none=False)
        (x * weight).mean().backward()
        optimizer.step()
        total += float(x.sum()) + float(y.sum())
    print(total)


if __name__ == "__main__":
    main()
