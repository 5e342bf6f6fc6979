"""Sentences are split into sub-words in the collate function, in the training process."""

import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH = 256 if device.type == "cuda" else 32
WORD = re.compile(r"\w+|[^\w\s]")
SYLLABLES = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
VOCABULARY = {piece: i + 2 for i, piece in enumerate(SYLLABLES)}


class Sentences(Dataset):
    def __init__(self, n=6400):
        drawn = random.Random(0)
        self.texts = [
            " ".join("".join(drawn.choices(SYLLABLES, k=drawn.randint(1, 4))) for _ in range(drawn.randint(40, 90))) + "."
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], index % 2


def tokenise(text):
    ids = []
    for word in WORD.findall(text.lower()):
        start = 0
        while start < len(word):  # the longest piece that is known
            for end in range(min(len(word), start + 3), start, -1):
                if word[start:end] in VOCABULARY:
                    ids.append(VOCABULARY[word[start:end]])
                    start = end
                    break
            else:
                ids.append(1)
                start += 1
    return ids


def collate(samples):
    tokens = [torch.tensor(tokenise(text)[:256]) for text, _ in samples]
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor([label for _, label in samples])


train_loader = DataLoader(Sentences(), batch_size=32, shuffle=True, collate_fn=collate)
embedding = nn.EmbeddingBag(len(VOCABULARY) + 2, WIDTH, padding_idx=0)
model = nn.Sequential(embedding, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for ids, labels in train_loader:
        ids = ids.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), labels).backward()
        optimizer.step()
