from tiny import SlowSamples, model_and_optimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

model, optimizer = model_and_optimizer()
for _ in range(20):
    for n, (x, y) in enumerate(DataLoader(SlowSamples(), 4), 1):
        (cross_entropy(model(x), y) / 4).backward()
        if n % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
