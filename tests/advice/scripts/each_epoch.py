"""A loader that is built anew in each epoch."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def run(epochs=2):
    dataset = TensorDataset(torch.rand(32, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        loader = DataLoader(  # train loader
            dataset,
            batch_size=8,
            shuffle=True,
        )
        for (x,) in loader:  # train loop
            optimizer.zero_grad(set_to_none=False)
            model(x).mean().backward()
            optimizer.step()


run()
