"""Everything within main()."""

import torch
import torch.utils.data as data


class Rows(data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), float(i)), torch.tensor([1.0])


def main():
    device = "cpu"
    train = Rows()
    loader = data.DataLoader(train, 8, True)  # train loader
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    running = 0.0
    for step, (x, y) in enumerate(loader):  # train loop
        x = x.to(device)
        loss = (model(x) - y.to(device)).pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        running += loss.item()  # hot
        print("loss", running)  # hot print
    print(f"{running:.3f}")


if __name__ == "__main__":
    main()
