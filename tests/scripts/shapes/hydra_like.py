# As a configuration framework does it: overrides from sys.argv, one new folder per run.
import functools
import os
import pathlib
import sys

from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


def main(task):
    @functools.wraps(task)
    def run():
        config = dict(word.split("=", 1) for word in sys.argv[1:])
        folder = pathlib.Path("outputs") / "2024-01-01" / "12-00-00"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(str(config))
        before = os.getcwd()
        os.chdir(folder)
        try:
            task(config)
        finally:
            os.chdir(before)

    return run


@main
def train(config):
    loader = DataLoader(SlowSamples(), int(config["data.batch_size"]))
    model, optimizer = model_and_optimizer()
    for _ in range(int(config["trainer.epochs"])):
        for x, y in loader:
            train_step(model, optimizer, x, y)
        pathlib.Path("last.ckpt").write_text("weights")


if __name__ == "__main__":
    train()
