import torch
from torch.utils.data import DataLoader, TensorDataset


def get_loaders(n, batch_size):
    x = torch.rand(n, 16)
    y = (x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)
    cut = int(0.8 * n)
    train = TensorDataset(x[:cut], y[:cut].float())
    val = TensorDataset(x[cut:], y[cut:].float())
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size * 2)


def evaluate(model, loader):
    model.eval()
    hits = n = 0
    with torch.no_grad():
        for x, y in loader:
            hits += ((model(x).squeeze(1) > 0) == y.bool()).sum().item()
            n += len(y)
    model.train()
    return hits / n


def main(epochs=300):
    train_loader, val_loader = get_loaders(60_000, 128)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    loss_fn = torch.nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        for xb, yb in train_loader:
            loss = loss_fn(model(xb).squeeze(1), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{epoch}: {evaluate(model, val_loader):.3f}")


main()
