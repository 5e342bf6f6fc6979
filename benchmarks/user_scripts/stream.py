"""Lines of a file as a stream; each worker reads its part."""
import itertools

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def parse(self, line):
        label, text = line.split("\t")
        counts = [0.0] * 26
        for c in text:
            if "a" <= c <= "z":
                counts[ord(c) - 97] += 1
        total = sum(counts) or 1.0
        return torch.tensor([c / total for c in counts]), torch.tensor([float(label)])

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        with open(self.path) as file:
            for line in itertools.islice(file, first, None, step):
                yield self.parse(line)


dataset = Lines("data/reviews.tsv")
loader = DataLoader(dataset, batch_size=32)
model = torch.nn.Sequential(torch.nn.Linear(26, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
for epoch in range(1000):
    for features, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(features), target)
        loss.backward()
        optimizer.step()
