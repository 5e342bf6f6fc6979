"""What to write for the settings of the dataset and of the model. Each compiles.

`loader`, `dataset`, `model`, `optimizer`, `images`, `labels`, `loss_of` and `device` stand for the
user's own names.
"""

from __future__ import annotations

from loaderdoctor.settings import Settings, Value

CACHE = """\
class Cached(torch.utils.data.Dataset):  # every sample is made once; random augmentation too
    def __init__(self, dataset):
        self.samples = [dataset[i] for i in range(len(dataset))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        return self.samples[index]
dataset = Cached(dataset)  # before its DataLoader is made: forked workers share it"""

TMPFS = """\
# Before the run: cp -r DATASET /dev/shm/dataset   (and remove it afterwards)
# and give the script /dev/shm/dataset as the folder of its data."""

OTHER_DISK = """\
# Before the run: cp -r DATASET {place}
# and give the script that folder as the folder of its data."""

KEEP_ITERATOR = """\
class Endless(torch.utils.data.Sampler):  # epoch after epoch, so that no iterator ever ends
    def __init__(self, batches):
        self.batches = batches
    def __len__(self):
        return len(self.batches)
    def __iter__(self):
        while True:
            yield from self.batches
loader = torch.utils.data.DataLoader(dataset, batch_sampler=Endless(loader.batch_sampler))
batches = iter(loader)  # once, before the first epoch
for batch in itertools.islice(batches, len(loader)):  # in each epoch"""

UINT8 = """\
# In the dataset, in place of ToTensor() and Normalize(mean, std):
image = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1).contiguous()  # uint8
# In the loop: a quarter of the bytes travel, and the device makes floats of them.
mean = torch.tensor(mean, device=device).view(-1, 1, 1)
std = torch.tensor(std, device=device).view(-1, 1, 1)
images = images.to(device).float().div_(255).sub_(mean).div_(std)"""

AMP = """\
with torch.autocast(device.type, dtype=torch.bfloat16):  # float16 needs a torch.amp.GradScaler
    loss = loss_of(model(images), labels)
loss.backward()"""

CHANNELS_LAST = """\
model = model.to(memory_format=torch.channels_last)  # before the optimizer is made
images = images.to(memory_format=torch.channels_last)  # in the loop"""

CHECKPOINT = """\
from torch.utils.checkpoint import checkpoint_sequential
# in forward, in place of x = self.blocks(x): activations are made again in the backward pass
x = checkpoint_sequential(self.blocks, segments=len(self.blocks), input=x, use_reentrant=False)"""

DDP = """\
# one process for each GPU: torchrun --nproc-per-node=gpu train.py
torch.distributed.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(model)
sampler = torch.utils.data.DistributedSampler(dataset)"""

DALI = """\
# nvidia.dali reads, decodes, crops, flips and normalises on the GPU, in place of the DataLoader
pipe = pipeline(batch_size=batch_size, num_threads=4, device_id=0)  # a function of fn.* operators
loader = DALIGenericIterator(pipe, ["images", "labels"], reader_name="files", auto_reset=True)"""

ON: dict[str, str] = {
    "keep_iterator": KEEP_ITERATOR,
    "cache": CACHE,
    "uint8": UINT8,
    "amp": AMP,
    "channels_last": CHANNELS_LAST,
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True  # where shapes are constant",
    "tf32": 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True',
    "compile": "model = torch.compile(model)",
    "zero_grad_none": "optimizer.zero_grad(set_to_none=True)",
    "checkpoint": CHECKPOINT,
    "fused_optimizer": "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
    "dali": DALI,
}
OFF: dict[str, str] = {
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = False",
    "tf32": 'torch.set_float32_matmul_precision("highest")\n'
    "torch.backends.cudnn.allow_tf32 = False",
    "zero_grad_none": "optimizer.zero_grad(set_to_none=False)",
    "fused_optimizer": "optimizer = torch.optim.AdamW(model.parameters(), fused=False)",
}


def axis_code(settings: Settings) -> tuple[str, ...]:
    """The code for each dataset or model setting of these; none for what is no setting to keep."""
    texts = (_code(name, value) for name, value in settings.changed().items())
    return tuple(text for text in texts if text is not None)


THREADS = """\
torch.set_num_threads({n})  # once, before the loop
# or start it so: OMP_NUM_THREADS={n} python train.py"""


def _code(name: str, value: Value) -> str | None:
    if name == "num_threads":
        return THREADS.format(n=value)
    if name == "storage" and value not in ("original", "cold"):
        return TMPFS if value == "tmpfs" else OTHER_DISK.format(place=value)
    if name == "ddp":
        return DDP if value == "ddp" else None
    if value is True:
        return ON.get(name)
    return OFF.get(name) if value is False else None
