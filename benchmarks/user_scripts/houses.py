import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader, random_split

df = pd.read_csv("data/houses.csv")
DISTRICTS = {name: i for i, name in enumerate(sorted(df["district"].unique()))}


class HouseDataset(Dataset):
    def __init__(self, frame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        row = self.frame.iloc[idx]
        features = torch.tensor([row["area"] / 100, row["rooms"] / 5, (row["year"] - 1950) / 50,
                                 row["floor"] / 5, float(DISTRICTS[row["district"]])], dtype=torch.float32)
        return features, torch.tensor(row["price"] / 1e5, dtype=torch.float32)


class Trainer:
    def __init__(self, dataset, batch_size=64):
        self.train_set, self.val_set = random_split(dataset, [0.9, 0.1])
        self.batch_size = batch_size
        self.model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def fit(self, epochs):
        loader = self.train_dataloader()
        for epoch in range(epochs):
            total = 0.0
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.model(x).squeeze(1), y)
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            print("epoch", epoch, "loss", total / len(loader), flush=True)


if __name__ == "__main__":
    torch.manual_seed(1)
    Trainer(HouseDataset(df)).fit(epochs=200)
