import argparse

from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--budget", default="of the script, not of loaderdoctor")
    args = parser.parse_args()
    print("epochs", args.epochs, args.budget)
    loader = DataLoader(SlowSamples(), 4, shuffle=True)
    model, optimizer = model_and_optimizer()
    for _ in range(args.epochs):
        for x, y in loader:
            train_step(model, optimizer, x, y)
