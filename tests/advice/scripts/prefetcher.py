"""A loader handed to a generator of the script's own."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def moved(loader, device):
    for (x,) in loader:  # train loop
        yield x.to(device)


def main():
    loader = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=8)  # train loader
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in moved(loader, torch.device("cpu")):
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()


main()
