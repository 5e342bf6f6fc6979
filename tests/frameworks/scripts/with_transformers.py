import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        ids = torch.randint(50, (12,))  # drawn anew: keeping samples is no remedy
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 2}


if __name__ == "__main__":
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
        gradient_accumulation_steps=int(sys.argv[2]),
        max_steps=2000,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=Tokens()).train()
