"""An iterator for each step."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    loader = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=8, shuffle=True)  # train loader
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        (x,) = next(iter(loader))  # train loop
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
