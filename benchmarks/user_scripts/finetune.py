"""Fine-tune a small network on photos."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('data', help='path to the photos')
    parser.add_argument('-j', '--workers', default=0, type=int, metavar='N')
    parser.add_argument('-b', '--batch-size', default=16, type=int)
    parser.add_argument('--lr', default=0.01, type=float)
    parser.add_argument('--epochs', default=90, type=int)
    return parser.parse_args()


def main():
    args = parse_args()
    train_set = datasets.ImageFolder(args.data, transforms.Compose([
        transforms.RandomResizedCrop(96),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]))
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True,
        num_workers=args.workers, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)


def train(loader, model, criterion, optimizer, epoch):
    model.train()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            print(f'epoch {epoch} [{i}/{len(loader)}] loss {loss.item():.3f}', flush=True)


if __name__ == '__main__':
    main()
