"""Bag of words over reviews; the collator builds the ids."""
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.rows = [line.rstrip("\n").split("\t") for line in f]

    def __getitem__(self, i):
        label, text = self.rows[i]
        return text, int(label)

    def __len__(self):
        return len(self.rows)


class Collator:
    def __init__(self, n_buckets=20000, max_len=128):
        self.n_buckets, self.max_len = n_buckets, max_len

    def __call__(self, batch):
        texts, labels = zip(*batch)
        ids = torch.zeros(len(texts), self.max_len, dtype=torch.long)
        for row, text in enumerate(texts):
            words = re.findall(r"[a-z]+", text.lower())[: self.max_len]
            grams = [w[i:i + 3] for w in words for i in range(max(1, len(w) - 2))]
            for col, gram in enumerate(grams[: self.max_len]):
                value = 7
                for c in gram:
                    value = (value * 31 + ord(c)) % self.n_buckets
                ids[row, col] = value
        return {"input_ids": ids, "labels": torch.tensor(labels)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20000, 64)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, input_ids):
        return self.head(self.embed(input_ids).mean(1))


def get_loader(bs):
    return DataLoader(Reviews("data/reviews.tsv"), bs, True, collate_fn=Collator())


model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    for batch in get_loader(32):
        logits = model(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits, batch["labels"])
        opt.zero_grad()
        loss.backward()
        opt.step()
