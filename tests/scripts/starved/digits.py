# As torchvision's MNIST: every sample an image made of an array, one at a time.
# argv[1] "fixed": ToTensor and Normalize; "random": a random crop before them.
import sys

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Digits(Dataset):
    def __init__(self, transform):
        self.data = torch.randint(0, 256, (3000, 28, 28), dtype=torch.uint8)
        self.targets = torch.randint(0, 10, (3000,))
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = Image.fromarray(self.data[index].numpy())
        return self.transform(image), int(self.targets[index])


first = [transforms.RandomCrop(28, padding=2)] if sys.argv[1] == "random" else []
last = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
train_set = Digits(transforms.Compose([*first, *last]))
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(400):
    for x, y in train_loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
