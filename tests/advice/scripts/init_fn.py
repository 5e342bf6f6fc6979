"""A loader with a worker_init_fn and a generator, and lines near a hundred columns."""

import random

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


generator = torch.Generator().manual_seed(0)
training_data_of_the_whole_year = TensorDataset(torch.rand(32, 4), torch.rand(32, 1))
training_loader = DataLoader(training_data_of_the_whole_year, batch_size=8, shuffle=True, worker_init_fn=seed_worker, generator=generator)  # train loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
for index, (features_of_the_batch, labels_of_the_batch) in enumerate(training_loader):  # train loop
    optimizer.zero_grad(set_to_none=False)
    (model(features_of_the_batch) - labels_of_the_batch).pow(2).mean().backward()
    optimizer.step()
    print("a line that is printed in each of the steps, with its number", index)  # hot print
