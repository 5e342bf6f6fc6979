"""A step on the CPU whose activations of 38 MB are larger than any block that glibc keeps (32 MiB)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 200_000), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(48 * 50, 4))
    loader = DataLoader(data, batch_size=48)
    for _ in range(1000):
        for (rows,) in loader:
            optimizer.zero_grad()
            model(rows).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
