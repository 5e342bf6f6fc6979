import io
import random

import torch
import torch.nn as nn
from pathlib import Path
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset
import torchvision.transforms.functional as TF

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')


class Noisy(Dataset):
    """PNG bytes in memory; decoded, blurred and flipped for every sample."""

    def __init__(self, folder):
        self.pngs = []
        for file in sorted(Path(folder).rglob('*.jpg'))[:200]:
            buffer = io.BytesIO()
            Image.open(file).resize((128, 96)).save(buffer, 'PNG')
            self.pngs.append(buffer.getvalue())

    def __len__(self): return len(self.pngs)

    def __getitem__(self, idx):
        image = Image.open(io.BytesIO(self.pngs[idx]))
        if random.random() < 0.5: image = ImageOps.mirror(image)
        noisy = image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2)))
        return {'noisy': TF.to_tensor(noisy), 'clean': TF.to_tensor(image)}


data = Noisy('data/photos')
loader = DataLoader(dataset=data,
                    batch_size=10,      # fits everywhere
                    shuffle=True,
                    num_workers=0)      # TODO: try more
model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 3, padding=1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

step = 0
while step < 100000:
    for batch in loader:
        noisy, clean = batch['noisy'].to(device), batch['clean'].to(device)
        loss = (model(noisy) - clean).abs().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        if step % 200 == 0: print(step, loss.item())
