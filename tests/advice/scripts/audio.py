"""Clips of unequal length, padded by a collate function of the script's own."""

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        clip = np.sin(np.arange(10 + i)).astype("float32")
        return clip, i % 2


def pad(samples):
    clips = [torch.as_tensor(clip) for clip, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    return pad_sequence(clips, batch_first=True), labels


loader = DataLoader(Clips(), batch_size=8, shuffle=True, collate_fn=pad)  # train loader
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for clips, labels in loader:  # train loop
    optimizer.zero_grad(set_to_none=False)
    (clips * weight).mean().backward()
    optimizer.step()
