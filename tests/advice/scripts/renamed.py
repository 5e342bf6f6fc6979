"""DataLoader under another name, and tabs for indents."""

import torch as th
from torch.utils.data import DataLoader as DL, TensorDataset


def loop(steps):
	rows = TensorDataset(th.rand(32, 4))
	feed = DL(rows, batch_size=8, drop_last=True)  # train loader
	model = th.nn.Linear(4, 1)
	optimizer = th.optim.SGD(model.parameters(), lr=0.1)
	for step, (x,) in enumerate(feed):  # train loop
		if step == steps:
			break
		optimizer.zero_grad(set_to_none=False)
		model(x).mean().backward()
		optimizer.step()
		print("step", step)  # hot print


loop(3)
