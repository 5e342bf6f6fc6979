import torch
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader

model, optimizer = model_and_optimizer()
training = DataLoader(SlowSamples(80), 4, shuffle=True)
validation = DataLoader(SlowSamples(120, sample_s=0.002), 4)
for _ in range(100):
    model.train()
    for x, y in training:
        train_step(model, optimizer, x, y)
    model.eval()
    with torch.no_grad():
        for x, y in validation:
            model(x)
