import hashlib
import logging
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

if sys.argv[1] == "pytorch_lightning":
    import pytorch_lightning as lightning
else:
    import lightning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
FOLDER = sys.argv[2]  # "" trains alone
TUNE = sys.argv[3] == "tune"
FAILS_AT = int(sys.argv[4])
seen = hashlib.sha256()


class Samples(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 7)), index % 2


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, index):
        if self.global_step == FAILS_AT:
            raise RuntimeError("as asked for")
        x, y = batch
        seen.update(x.numpy().tobytes() + y.numpy().tobytes())
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main():
    torch.manual_seed(0)
    callbacks = []
    if FOLDER:
        from loaderdoctor.callbacks.lightning import LightningMonitor

        callbacks.append(LightningMonitor(output=FOLDER, tune="exact" if TUNE else False))
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    model = Model()
    try:
        trainer.fit(model, DataLoader(Samples(), batch_size=4, shuffle=True))
    except RuntimeError as error:
        print(error)
    print(seen.hexdigest(), model.layer.weight.sum().item())


if __name__ == "__main__":
    main()
