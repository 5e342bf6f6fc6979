"""Two networks and two optimizers, in a function with a decorator."""

import functools

import torch
from torch.utils.data import DataLoader, TensorDataset


def timed(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@timed
def train(batch_size):
    data = TensorDataset(torch.rand(32, 4))
    loader = DataLoader(data, batch_size=batch_size)  # train loader
    one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    a = torch.optim.Adam(one.parameters())
    b = torch.optim.Adam(two.parameters())
    for (x,) in loader:  # train loop
        a.zero_grad(set_to_none=False)
        b.zero_grad(set_to_none=False)
        two(one(x)).mean().backward()
        a.step()
        b.step()


train(8)
