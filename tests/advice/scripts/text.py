"""Batches that are dicts, of a collate function within a class."""

import torch
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self):
        self.texts = ["the cat sat"] * 32

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i]


class Collator:
    def __call__(self, texts):
        ids = [[len(word) for word in text.split()] for text in texts]
        return {"input_ids": torch.tensor(ids), "labels": torch.zeros(len(ids))}


def main(device="cpu"):
    collator = Collator()
    loader = DataLoader(Texts(), batch_size=8, collate_fn=collator)  # train loader
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for batch in loader:  # train loop
        ids = batch["input_ids"].to(device)
        optimizer.zero_grad(set_to_none=False)
        (ids * weight).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
