import torch.multiprocessing as mp
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


def train(rank, n_steps):
    model, optimizer = model_and_optimizer()
    for x, y in DataLoader(SlowSamples(4 * n_steps), 4):
        train_step(model, optimizer, x, y)


if __name__ == "__main__":
    mp.spawn(train, args=(2000,), nprocs=2)
