from tiny import SlowSamples, model_and_optimizer, train_step
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

model, optimizer = model_and_optimizer()
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=5, warmup=1, active=3)
) as profiler:
    for _ in range(20):
        for x, y in DataLoader(SlowSamples(), 4):
            train_step(model, optimizer, x, y)
            profiler.step()
