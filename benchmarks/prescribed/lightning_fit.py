"""A Lightning Trainer over a dataset that costs CPU time, made in the training process."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

WINDOW = torch.hann_window(512)


class Waves(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(40_000) * (index + 1) * 1e-3)
        return torch.stft(wave, 512, window=WINDOW, return_complex=True).abs()[:128, :128], index % 10


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 10))
        self.layers(torch.zeros(1, 128, 128))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


train_loader = DataLoader(Waves(), batch_size=16, shuffle=True)
trainer = L.Trainer(
    max_epochs=10_000,
    limit_train_batches=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    devices=1,
)
trainer.fit(Net(), train_loader)
