"""spawns_group.py STEPS FOLDER: two ranks of one group, started by mp.spawn; each prints its hash."""

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny import SlowSamples, model_and_optimizer
from torch.utils.data import DataLoader, DistributedSampler


def train(rank, n_steps, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, optimizer = model_and_optimizer()
    data = SlowSamples(8 * n_steps)
    seen = hashlib.sha256()
    for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        seen.update(x.numpy().tobytes() + loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes())
    Path(folder, f"rank{rank}").write_text(seen.hexdigest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(int(sys.argv[1]), sys.argv[2]), nprocs=2)
    print("trained")
