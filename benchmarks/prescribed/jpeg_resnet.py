"""A ResNet on JPEG files of ImageNet's size, with too few workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
transform = transforms.Compose(
    [
        transforms.RandomResizedCrop(224 if on_gpu else 112),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)
images = datasets.ImageFolder(sys.argv[1], transform)
train_loader = DataLoader(images, batch_size=32 if on_gpu else 8, shuffle=True, num_workers=1)
model = (models.resnet50 if on_gpu else models.resnet18)().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
