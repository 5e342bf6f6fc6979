from tiny import model_and_optimizer, train_step
import torch

model, optimizer = model_and_optimizer()
for _ in range(50):
    train_step(model, optimizer, torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
print("trained")
