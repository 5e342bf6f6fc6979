"""Full-batch LBFGS over a recurrent net: a step holds far too many events to profile it."""

import torch

torch.manual_seed(0)
series = torch.sin(torch.arange(60.0)).repeat(8, 1).double()
cell = torch.nn.LSTMCell(1, 16).double()
head = torch.nn.Linear(16, 1).double()
parameters = [*cell.parameters(), *head.parameters()]
optimizer = torch.optim.LBFGS(parameters, lr=1e-3, max_iter=500, tolerance_grad=0, tolerance_change=0)


def closure():
    optimizer.zero_grad()
    state, loss = None, 0.0
    for value, target in zip(series.split(1, 1)[:-1], series.split(1, 1)[1:]):
        state = cell(value, state)
        loss = loss + (head(state[0]) - target).square().mean()
    loss.backward()  # the one pass
    return loss


while True:
    optimizer.step(closure)
