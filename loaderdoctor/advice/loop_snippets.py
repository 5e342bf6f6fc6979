"""Examples of code that changes the loop around its batches, or the model.

`loader`, `dataset`, `model`, `optimizer`, `batch`, `images`, `labels`, `loss_of` and `device` stand
for the user's own names. Each compiles.
"""

from __future__ import annotations

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

FOREVER = """\
def forever(loader):  # an iterator for each epoch, not for each batch
    while True:
        yield from loader"""

ONE_THREAD = """\
def one_thread(worker_id):
    cv2.setNumThreads(0)"""

ALL_CPUS = """\
def all_cpus(worker_id):  # undoes what an import did to the CPU affinity
    os.sched_setaffinity(0, range(os.cpu_count()))"""

OWN_CPU = """\
def own_cpu(worker_id):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[worker_id % len(cpus)]})"""

OWN_NODE = """\
def own_node(worker_id):  # workers on the NUMA nodes in turns
    folder, nodes = "/sys/devices/system/node", []
    for name in sorted(os.listdir(folder)):
        if name.startswith("node"):
            with open(f"{folder}/{name}/cpulist") as file:
                parts = [part.split("-") for part in file.read().strip().split(",") if part]
            cpus = {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)}
            nodes.append(cpus & os.sched_getaffinity(0))
    nodes = [cpus for cpus in nodes if cpus]
    os.sched_setaffinity(0, nodes[worker_id % len(nodes)])"""

_LESS_COLLECTED = """\
class {name}:  # a worker_init_fn: {what}
    def __init__(self, init=None):
        self.init = init
    def __call__(self, worker_id):
        if self.init is not None:
            self.init(worker_id)
        gc.freeze()"""
FROZEN = _LESS_COLLECTED.format(name="Frozen", what="no looking for garbage in what is there now")
RARELY_COLLECTED = (
    _LESS_COLLECTED.format(name="RarelyCollected", what="garbage is looked for less often")
    + "\n        gc.set_threshold(50_000, 20, 50)"
)

PIN_METHOD_LINES = (
    "def pin_memory(self):  # DataLoader calls it where pin_memory=True",
    "    for name, value in list(vars(self).items()):",
    "        if isinstance(value, torch.Tensor):",
    "            object.__setattr__(self, name, value.pin_memory())",
    "    return self",
)

# As `.item()` gives it, on the device.
SUMMAND = """\
def summand(value):  # as wide as a number of Python's, without waiting for it
    value = value.detach().reshape(())
    return value.double() if value.is_floating_point() else value.long()"""

KEPT = """\
class Kept:  # batches are collated once, and come in another order in each epoch
    def __init__(self, loader):
        # Copied: of what workers send, each tensor keeps a file open.
        self.loader, self.batches = loader, [copy.deepcopy(batch) for batch in loader]
        if loader.pin_memory and torch.cuda.is_available():
            self.batches = torch.utils.data._utils.pin_memory.pin_memory(self.batches)
    def __getattr__(self, name):  # dataset, sampler, …
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.batches)
    def __iter__(self):
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i]"""

THREADS = """\
class Threads:  # the loader's own batches, in its order, made by threads of this process
    def __init__(self, loader, n):
        self.loader, self.n = loader, n
    def __getattr__(self, name):  # dataset, sampler, …
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.loader)
    def made(self, indices):
        dataset, several = self.loader.dataset, getattr(self.loader.dataset, "__getitems__", None)
        batch = self.loader.collate_fn(
            several(indices) if several else [dataset[i] for i in indices]
        )
        if self.loader.pin_memory and torch.cuda.is_available():
            batch = torch.utils.data._utils.pin_memory.pin_memory(batch)
        return batch
    def __iter__(self):
        # As iter(loader) draws, so that a shuffled order stays what it was.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        pool, ahead = concurrent.futures.ThreadPoolExecutor(self.n), []
        try:
            for indices in self.loader.batch_sampler:
                ahead.append(pool.submit(self.made, indices))
                if len(ahead) > 2 * self.n:
                    yield ahead.pop(0).result()
            while ahead:
                yield ahead.pop(0).result()
        finally:
            pool.shutdown(cancel_futures=True)"""

_PACKED = """\
class Packed:  # the tensors of a batch as one of bytes, and where each lies in it
    def __init__(self, data, places, others):
        self.data, self.places, self.others = data, places, others
    def pin_memory(self):  # DataLoader calls it where pin_memory=True
        return Packed(self.data.pin_memory(), self.places, self.others)
    def to(self, device):  # one copy; each tensor is a view of it
        data, batch = self.data.to(device, non_blocking=True), self.others.copy()
        for name, dtype, shape, start in self.places:
            tensor = torch.empty(0, dtype=dtype, device=data.device)
            start //= tensor.element_size()
            batch[name] = tensor.set_(data.untyped_storage(), start, shape)
        return batch
class Packing:  # a collate function around another
    def __init__(self, collate):
        self.collate = collate
    def __call__(self, samples):
        batch, parts, places, end = self.collate(samples), [], [], 0
        others = batch.copy()
        for name, tensor in {items}:
            if isinstance(tensor, torch.Tensor):
                others[name] = None
                places.append((name, tensor.dtype, tuple(tensor.shape), end))
                gap = -tensor.nbytes % 64  # each begins where kernels may read it at once
                parts += [tensor.reshape(-1).view(torch.uint8), torch.zeros(gap, dtype=torch.uint8)]
                end += tensor.nbytes + gap
        return Packed(torch.cat(parts), places, others)
class OneCopy:  # batches as they were, on the device
    def __init__(self, loader, device):
        self.loader, self.device = loader, device
    def __getattr__(self, name):
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        for packed in self.loader:
            yield packed.to(self.device)"""


def packed(*, as_dict: bool) -> str:
    """Classes around a collate function and a loader, whose batches are dicts or lists."""
    return _PACKED.format(items="batch.items()" if as_dict else "enumerate(batch)")


SHARED_BUFFERS = """\
# For batches that are lists of tensors of one shape; pins nothing, seeds no worker.
class Slots:  # around the batch sampler: each batch with its buffer
    def __init__(self, batches, n):
        self.batches, self.n = batches, n
    def __len__(self):
        return len(self.batches)
    def __iter__(self):
        for k, indices in enumerate(self.batches):
            yield [(k % self.n, i) for i in indices]
class WithSlot(torch.utils.data.Dataset):
    def __init__(self, dataset):
        self.dataset = dataset
    def __getitem__(self, slot_index):
        return slot_index[0], self.dataset[slot_index[1]]
class IntoBuffer:
    def __init__(self, buffers):
        self.buffers = buffers
    def __call__(self, samples):
        slot, n = samples[0][0], len(samples)
        columns = zip(*(sample for _, sample in samples))
        for out, values in zip(self.buffers[slot], columns):
            out[:n] = torch.utils.data.default_collate(list(values))
        return slot, n
class Reused:  # batches in shared tensors that are filled again and again: mapped only once
    def __init__(self, loader):
        size, ahead = loader.batch_size, loader.num_workers * (loader.prefetch_factor or 2)
        first = torch.utils.data.default_collate([loader.dataset[0]] * size)
        # Two more than are under way, so that none is overwritten while the loop uses it.
        self.buffers = [
            [torch.zeros_like(x).share_memory_() for x in first] for _ in range(ahead + 2)
        ]
        self.loader = torch.utils.data.DataLoader(
            WithSlot(loader.dataset),
            batch_sampler=Slots(loader.batch_sampler, len(self.buffers)),
            collate_fn=IntoBuffer(self.buffers),
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        for slot, n in self.loader:
            yield [x[:n] for x in self.buffers[slot]]  # keep nothing past the next batch"""

# A thread that still runs as Python ends may abort the process (exit code 134, up to Python 3.13),
# and BackgroundGenerator 1.0.3 has no stop.
FETCHED_AHEAD = """\
def fetched_ahead(batches):
    # By a thread, which ends with the loop wherever that is left.
    left = False
    def until_left():
        for batch in batches:
            if left:
                return
            yield batch
    ahead = BackgroundGenerator(until_left(), max_prefetch=2)
    try:
        yield from ahead
    finally:
        left = True
        for _ in ahead:  # what was fetched by then
            pass
        ahead.join()"""

_COPIED_AHEAD = """\
def copied_ahead(loader, device):
    # Copies the next batch on its own stream while this one computes. Needs pinned batches.
    def there(t):
        return t.to(device, non_blocking=True) if isinstance(t, torch.Tensor) else t
    stream, current = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(stream):
            following = {moved}
        if current is not None:
            yield current
        torch.cuda.current_stream().wait_stream(stream)
        for t in {tensors}:
            if isinstance(t, torch.Tensor):
                t.record_stream(torch.cuda.current_stream())
        current = following
    if current is not None:
        yield current"""


def copied_ahead(*, as_dict: bool) -> str:
    """A generator around a loader whose batches are lists, or dicts, of tensors and other things.

    Those stay as they are.
    """
    if as_dict:
        moved = "{k: there(t) for k, t in batch.items()}"
        return _COPIED_AHEAD.format(moved=moved, tensors="following.values()")
    return _COPIED_AHEAD.format(moved="[there(t) for t in batch]", tensors="following")


ON_DEVICE = """\
class OnDevice:  # the loader's own batches, in its order; the whole dataset is copied once
    def __init__(self, loader, device):
        dataset, every = loader.dataset, range(len(loader.dataset))
        several = getattr(dataset, "__getitems__", None)
        samples = several(list(every)) if several else [dataset[i] for i in every]
        self.loader, self.tensors = loader, [t.to(device) for t in loader.collate_fn(samples)]
    def __getattr__(self, name):  # dataset, sampler, …
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        # As iter(loader) draws, so that a shuffled order stays what it was.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        for indices in self.loader.batch_sampler:
            chosen = torch.tensor(indices, device=self.tensors[0].device)
            yield [t[chosen] for t in self.tensors]"""
