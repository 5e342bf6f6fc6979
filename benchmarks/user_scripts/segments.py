"""Windows of a long series out of a memory map, with a sampler and a resampled copy."""
import argparse
import logging

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("segments")


class Windows(Dataset):
    def __init__(self, series, width):
        self.series, self.width = series, width

    def __len__(self):
        return self.series.size - self.width - 1

    def __getitem__(self, i):
        window = self.series[i:i + self.width].astype("float32")
        window = (window - window.mean()) / (window.std() + 1e-6)
        half = np.interp(np.arange(0, self.width, 2), np.arange(self.width), window)
        smooth = np.convolve(window, np.ones(9) / 9, mode="same")
        x = np.concatenate([window, smooth, half.astype("float32")]).astype("float32")
        return torch.from_numpy(x), torch.tensor(np.sign(window[-1] - window[-2]), dtype=torch.float32)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seed", type=int, default=3)
    opts = p.parse_args(argv)
    torch.manual_seed(opts.seed)
    series = np.load("data/recordings.npy", mmap_mode="r").reshape(-1)[:200000]
    ds = Windows(series, opts.width)
    weights = torch.linspace(0.5, 1.5, len(ds))
    dl = DataLoader(ds, batch_size=opts.batch, sampler=WeightedRandomSampler(weights, 20000))
    net = torch.nn.Sequential(torch.nn.Linear(opts.width * 5 // 2, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    for epoch in range(1000):
        running = 0.0
        for x, y in dl:
            opt.zero_grad()
            loss = torch.nn.functional.huber_loss(net(x).squeeze(-1), y)
            loss.backward()
            opt.step()
            running += loss.item()
        log.info("epoch %d: %.4f", epoch, running / len(dl))


if __name__ == "__main__":
    main()
