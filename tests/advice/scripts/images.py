"""A dataset of images with transforms, as torchvision's are."""

import torch
from torch.utils.data import DataLoader, Dataset


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Images(Dataset):
    def __init__(self, transform):
        self.data = torch.randint(0, 256, (32, 6, 6), dtype=torch.uint8)
        self.targets = torch.arange(32) % 2
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.transform(self.data[i]), int(self.targets[i])


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_set = Images(Compose([lambda x: x.unsqueeze(0).float().div(255)]))
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)  # train loader
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for images, labels in train_loader:  # train loop
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # hot
