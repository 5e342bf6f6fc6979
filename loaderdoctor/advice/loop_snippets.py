"""Examples of code that changes the loop around its batches, or the model.

`loader`, `dataset`, `model`, `optimizer`, `batch`, `images`, `labels`, `loss_of` and `device` stand
for the user's own names. Each compiles.
"""

from __future__ import annotations

BACKGROUND = """\
from prefetch_generator import BackgroundGenerator
for batch in BackgroundGenerator(iter(loader), max_prefetch=2):
    ...  # the loop as it is"""

SIDE_STREAM = """\
def copied_ahead(loader, device):
    # Copies the next batch on its own stream while this one computes. Needs pinned batches.
    stream, current = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(stream):
            following = [t.to(device, non_blocking=True) for t in batch]
        if current is not None:
            yield current
        torch.cuda.current_stream().wait_stream(stream)
        for t in following:
            t.record_stream(torch.cuda.current_stream())
        current = following
    if current is not None:
        yield current
for images, labels in copied_ahead(loader, device):
    ...  # the loop as it is, without its .to(device)"""

VALIDATION = """\
validation = DataLoader(validation_set, batch_size=2 * batch_size, num_workers=2,
                        persistent_workers=True)  # made once, not in the loop
if step % (4 * every) == 0:
    model.eval()
    with torch.no_grad():
        for images, labels in validation:
            ...  # as it is
    model.train()"""

SHARED_BUFFERS = """\
# Shared tensors that workers fill again and again: mapped once, never freed. Two more than the
# batches under way, so that none is overwritten while the loop uses it.
x, y = torch.utils.data.default_collate([dataset[i] for i in range(batch_size)])
buffers = [(torch.zeros_like(x).share_memory_(), torch.zeros_like(y).share_memory_())
        for _ in range(num_workers * prefetch_factor + 2)]
class Slots:  # around the batch sampler: each batch with its buffer
    def __init__(self, batches):
        self.batches = batches
    def __len__(self):
        return len(self.batches)
    def __iter__(self):
        for n, indices in enumerate(self.batches):
            yield [(n % len(buffers), i) for i in indices]
class WithSlot(torch.utils.data.Dataset):
    def __init__(self, dataset):
        self.dataset = dataset
    def __getitem__(self, slot_index):
        return slot_index[0], self.dataset[slot_index[1]]
def into_buffer(samples):
    slot, n = samples[0][0], len(samples)
    for out, values in zip(buffers[slot], zip(*(sample for _, sample in samples))):
        out[:n] = torch.utils.data.default_collate(list(values))
    return slot, n
loader = DataLoader(WithSlot(dataset), batch_sampler=Slots(loader.batch_sampler),
                    collate_fn=into_buffer, num_workers=num_workers,
                    prefetch_factor=prefetch_factor)
for slot, n in loader:
    x, y = (t[:n] for t in buffers[slot])  # the loop as it is: keep nothing past the next batch
"""

RESIDENT = """\
class OnDevice:  # the whole dataset, copied once; augment in the loop, on the device
    def __init__(self, loader, device):
        samples = [loader.dataset[i] for i in range(len(loader.dataset))]
        self.tensors = [t.to(device) for t in loader.collate_fn(samples)]
        self.batch_size = loader.batch_size
    def __len__(self):
        return -(-len(self.tensors[0]) // self.batch_size)
    def __iter__(self):
        n, device = len(self.tensors[0]), self.tensors[0].device
        for chosen in torch.randperm(n, device=device).split(self.batch_size):  # or torch.arange
            yield [t[chosen] for t in self.tensors]
loader = OnDevice(loader, device)  # the loop, or a Trainer, takes it as it took the DataLoader"""

ITERATOR = """\
for epoch in range(n_epochs):
    for batch in loader:  # one iterator per epoch, its workers stay ahead
        ...
# or, where steps are counted: start a new epoch only when one is used up
batches = iter(loader)
for step in range(n_steps):
    batch = next(batches, None)
    if batch is None:
        batches = iter(loader)
        batch = next(batches)"""

WORKER_THREADS = """\
def one_thread(worker_id):
    torch.set_num_threads(1)
    cv2.setNumThreads(0)  # where OpenCV is used
loader = DataLoader(dataset, num_workers=4, worker_init_fn=one_thread)
# NumPy's BLAS reads its thread count when it is imported: set it in the shell
#   OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 python train.py"""

AFFINITY = """\
def all_cpus(worker_id):  # undoes what an import did to the CPU affinity
    os.sched_setaffinity(0, range(os.cpu_count()))
loader = DataLoader(dataset, num_workers=4, worker_init_fn=all_cpus)"""

PIN_METHOD = """\
class Batch:
    def pin_memory(self):  # DataLoader calls it where pin_memory=True
        self.images = self.images.pin_memory()
        self.labels = self.labels.pin_memory()
        return self"""

PACKED = """\
packed = torch.cat([t.reshape(-1) for t in small])  # in collate_fn: one tensor, one copy
packed = packed.to(device, non_blocking=True)
small = [p.view(s) for p, s in zip(packed.split(sizes), shapes)]"""

NO_SYNC = """\
total = torch.zeros((), device=device)  # before the loop
total += loss.detach()  # in the loop: stays on the device
if step % 100 == 99:
    print(total.item() / 100)  # one sync in a hundred steps
    total.zero_()"""

LAUNCHES = """\
model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs: one launch for many kernels
optimizer = torch.optim.AdamW(model.parameters(), fused=True)"""

DISTRIBUTED = """\
# Start one process for each GPU:  torchrun --nproc-per-node 4 train.py
torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])
sampler = torch.utils.data.DistributedSampler(dataset)  # call its set_epoch(epoch) every epoch
loader = DataLoader(dataset, batch_size=batch_size // n_gpus, sampler=sampler)"""

TF32 = """\
torch.set_float32_matmul_precision("high")  # once, before training"""

AUTOTUNER = """\
torch.backends.cudnn.benchmark = True  # once, before training"""

ZERO_GRAD = """\
optimizer.zero_grad()  # set_to_none=True is the default: gradients are dropped, not filled"""

NO_BIAS = """\
block = torch.nn.Sequential(
    torch.nn.Conv2d(64, 128, kernel_size=3, bias=False),  # the batch norm has its own bias
    torch.nn.BatchNorm2d(128),
    torch.nn.ReLU(),
)"""
