"""Pictures that workers make floats of: four bytes are collated, handed over and copied for one."""

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
SIDE = 224 if on_gpu else 96


class Pictures(Dataset):
    def __init__(self, transform):
        self.pictures = numpy.random.default_rng(0).integers(0, 256, (256, SIDE, SIDE, 3), "uint8")
        self.transform = transform

    def __len__(self):
        return 25_600

    def __getitem__(self, index):
        picture = Image.fromarray(self.pictures[index % 256])
        return self.transform(picture), index % 10


transform = transforms.Compose(
    [
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)
train_set = Pictures(transform)
train_loader = DataLoader(
    train_set, batch_size=128 if on_gpu else 32, shuffle=True, num_workers=8 if on_gpu else 2
)
model = nn.Sequential(
    nn.Conv2d(3, 32, 7, stride=4),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
