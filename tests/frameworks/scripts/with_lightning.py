import logging
import time

import lightning
import torch
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Samples(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.rand(8) + index % 7, index % 2  # drawn anew: keeping samples is no remedy


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Samples(1600), batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Samples(64), batch_size=8)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layer(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", torch.nn.functional.cross_entropy(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=50,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=40,
        limit_val_batches=4,
    )
    trainer.fit(Model(), Data())
