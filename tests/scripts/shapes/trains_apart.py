# Two processes that train each by itself, as Hogwild does; the one that starts them never trains.
import multiprocessing

from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


def train(number):
    model, optimizer = model_and_optimizer()
    for _epoch in range(40):
        for x, y in DataLoader(SlowSamples(400), 4):
            train_step(model, optimizer, x, y)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=train, args=(i,)) for i in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print("behind the children")
