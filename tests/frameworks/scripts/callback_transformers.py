import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

FOLDER = sys.argv[2]  # "" trains alone


class Tokens(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.002)
        ids = torch.full((12,), index % 50)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 2}


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        max_steps=500,
        report_to=[],
        save_strategy="no",
        logging_steps=100,
        disable_tqdm=True,
        use_cpu=True,
    )
    callbacks = []
    if FOLDER:
        from loaderdoctor.callbacks.transformers import TransformersMonitor

        callbacks.append(TransformersMonitor(output=FOLDER))
    model = BertForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=Tokens(), callbacks=callbacks).train()
    print(sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
