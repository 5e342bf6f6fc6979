"""A loader in a closure, in a `with`, in a `try`."""

import contextlib

import torch
from torch.utils.data import DataLoader, TensorDataset


def make(batch_size):
    def start(epochs):
        with contextlib.suppress(KeyboardInterrupt):
            try:
                loader = DataLoader(TensorDataset(torch.rand(32, 4)), batch_size=batch_size)  # train loader
                model = torch.nn.Linear(4, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(epochs):
                    for x, in loader:  # train loop
                        optimizer.zero_grad(set_to_none=False)
                        model(x).mean().backward()
                        optimizer.step()
            finally:
                print("done")

    return start


make(8)(2)
