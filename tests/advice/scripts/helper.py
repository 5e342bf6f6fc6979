"""The loader is built by a function for both parts of the data."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def get_loader(part, batch, workers):
    dataset = TensorDataset(torch.rand(32 if part == "train" else 8, 4))
    return DataLoader(dataset, batch_size=batch, shuffle=part == "train", num_workers=workers)  # train loader


def train(model, loader, optimizer, device):
    for (x,) in loader:  # train loop
        x = x.to(device)
        optimizer.zero_grad(set_to_none=False)
        model(x).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    device = torch.device("cpu")
    net = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        train(net, get_loader("train", 8, 0), sgd, device)
