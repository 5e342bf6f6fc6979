from tiny import SlowSamples, model_and_optimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

labelled = DataLoader(SlowSamples(2000, sample_s=0.005), 4)
unlabelled = DataLoader(SlowSamples(4000, sample_s=0.0002), 8)
model, optimizer = model_and_optimizer()
for _ in range(20):
    for (x, y), (u, _) in zip(labelled, unlabelled):
        loss = cross_entropy(model(x), y) + model(u).std()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
