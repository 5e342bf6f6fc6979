"""hashed.py KIND FOLDER: a trainer's training; prints a hash of its batches, losses, weights."""

import hashlib
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

KIND, FOLDER = sys.argv[1:]
N_EPOCHS, N_BATCHES, BATCH = 6, 200, 4
SEEN = hashlib.sha256()


class Samples(Dataset):
    def __len__(self):
        return N_BATCHES * BATCH

    def __getitem__(self, index):
        time.sleep(0.002)
        return {"x": torch.full((8,), index / 100), "labels": index % 2}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x, labels):
        loss = torch.nn.functional.cross_entropy(self.layer(x), labels)
        for tensor in (x, labels, loss.detach()):
            SEEN.update(tensor.cpu().numpy().tobytes())
        return {"loss": loss}


def lightning_(package):
    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = Model()

        def training_step(self, batch, index):
            return self.inner(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    module = Module()
    trainer = package.Trainer(
        max_epochs=N_EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Samples(), BATCH, shuffle=True))
    return module


def transformers_():
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=FOLDER,
        per_device_train_batch_size=BATCH,
        num_train_epochs=N_EPOCHS,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = Model()
    Trainer(model, arguments, train_dataset=Samples()).train()
    return model


def accelerate_():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(Samples(), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(N_EPOCHS):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    return model


def main():
    torch.manual_seed(0)
    if KIND == "transformers":
        model = transformers_()
    elif KIND == "accelerate":
        model = accelerate_()
    else:
        model = lightning_(__import__(KIND))
    for parameter in model.parameters():
        SEEN.update(parameter.detach().numpy().tobytes())
    print(f"hash {SEEN.hexdigest()}")


if __name__ == "__main__":
    main()
