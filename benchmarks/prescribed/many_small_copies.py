"""A batch is a dict of eighty small tensors, each moved to the device by itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FIELDS = [f"feature_{i:02}" for i in range(80)]


class Events(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.values = torch.randn(64, 128, len(FIELDS), 8, generator=generator)

    def __len__(self):
        return 20_000

    def __getitem__(self, index):  # a whole batch, as event stores return them
        values = self.values[index % 64]
        return {name: values[:, i] for i, name in enumerate(FIELDS)}


train_loader = DataLoader(Events(), batch_size=None, shuffle=True, num_workers=2, pin_memory=device.type == "cuda")
model = nn.Sequential(nn.Linear(8 * len(FIELDS), 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for batch in train_loader:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        x = torch.cat([batch[name] for name in FIELDS], dim=1)
        optimizer.zero_grad()
        loss = (model(x) - x.mean(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
