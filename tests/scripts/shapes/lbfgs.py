import torch
from tiny import SlowSamples
from torch.utils.data import DataLoader

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=20, tolerance_grad=0.0)
for _ in range(20):
    for x, y in DataLoader(SlowSamples(sample_s=0.01), 4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
