import torch
from tiny import SlowSamples
from torch.utils.data import DataLoader

generator, critic = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
for _ in range(20):
    for n, (real, _) in enumerate(DataLoader(SlowSamples(), 4)):
        fake = generator(torch.randn(4, 4))
        loss = critic(fake.detach()).mean() - critic(real).mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        if n % 5 == 0:  # the critic learns more often
            for_generator.zero_grad()
            (-critic(generator(torch.randn(4, 4))).mean()).backward()
            for_generator.step()
