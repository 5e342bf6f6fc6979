"""Code to copy that changes the dataset or how batches are made of it. Each compiles.

`dataset`, `loader`, `device` and `batch` stand for the user's own names.
"""

from __future__ import annotations

from collections.abc import Sequence

SLICING = """\
class Batches(torch.utils.data.Dataset):
    def __init__(self, *tensors):
        self.tensors = tensors
    def __len__(self):
        return len(self.tensors[0])
    def __getitem__(self, index):
        return tuple(t[index] for t in self.tensors)
    def __getitems__(self, indices):  # the whole batch in one indexing call
        return tuple(t[indices] for t in self.tensors)
loader = DataLoader(
    Batches(x, y), batch_size=256, shuffle=True, num_workers=0, collate_fn=lambda batch: batch
)"""

WHOLE_BATCHES = """\
class WholeBatches(torch.utils.data.Dataset):  # a batch in one indexing call
    def __init__(self, dataset):
        self.dataset = dataset
    def __len__(self):
        return len(self.dataset)
    def __getitem__(self, index):
        return self.dataset[index]
    def __getitems__(self, indices):
        return list(self.dataset[indices])
def as_it_is(batch):
    return batch"""

_ROWS = """\
class Rows(torch.utils.data.Dataset):  # a batch in one indexing call for each array
    def __init__(self, dataset):
        self.dataset = dataset
        self.columns = {columns}
        some = list(range(0, len(dataset), len(dataset) // 64 + 1))
        own = torch.utils.data.default_collate([dataset[i] for i in some])
        pairs = {pairs}
        assert all(torch.equal(a, b) for a, b in pairs), "not rows"
    def __len__(self):
        return len(self.dataset)
    def __getitem__(self, index):
        return self.dataset[index]
    def __getitems__(self, indices):
        rows = self.columns
        return {batch}
def as_it_is(batch):
    return batch"""


def row_batches(columns: Sequence[tuple[str, str, str]]) -> str:
    """Whole batches of these: for each tensor its path in a batch, its array's name, and a cast.

    Paths are those of a list or a dict of tensors, or of a tensor alone.
    """
    held = "".join(f"            torch.as_tensor(dataset.{name}),\n" for _, name, _ in columns)
    taken = [f"rows[{i}][indices]{cast}" for i, (_, _, cast) in enumerate(columns)]
    names = [path[1:-1] for path, _, _ in columns]
    if names == [""]:
        pairs, batch = "[(self.__getitems__(some), own)]", taken[0]
    elif all(name.startswith("'") for name in names):
        pairs = "zip(self.__getitems__(some).values(), own.values(), strict=True)"
        batch = ", ".join(f"{name}: {one}" for name, one in zip(names, taken, strict=True))
        batch = f"{{{batch}}}"
    else:
        pairs = "zip(self.__getitems__(some), own, strict=True)"
        batch = f"[{', '.join(taken)}]"
    return _ROWS.format(columns=f"[\n{held}        ]", pairs=pairs, batch=batch)


SLICED = """\
class Sliced(torch.utils.data.Dataset):
    def __init__(self, dataset):  # every sample is made once, and all are one tensor
        samples = [dataset[i] for i in range(len(dataset))]
        self.columns = torch.utils.data.default_collate(samples)
    def __len__(self):
        return len(self.columns[0])
    def __getitems__(self, indices):  # the whole batch in one indexing call
        return [column[indices] for column in self.columns]
    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)
def as_it_is(batch):
    return batch
loader = DataLoader(Sliced(dataset), batch_size=64, shuffle=True, collate_fn=as_it_is)"""

FROM_ARRAY = """\
class Batches(torch.utils.data.Dataset):  # whole batches from the array of all images
    def __init__(self, dataset):
        self.dataset = dataset
        self.images = torch.as_tensor(dataset.data)
        self.labels = torch.as_tensor(dataset.targets)
        some = list(range(0, len(dataset), len(dataset) // 64 + 1))
        own = torch.utils.data.default_collate([dataset[i] for i in some])
        torch.testing.assert_close(self.__getitems__(some), own)  # or its samples are others
    def __len__(self):
        return len(self.dataset)
    def __getitem__(self, index):
        return self.dataset[index]
    def __getitems__(self, indices):  # what ToTensor() and Normalize() did, once for the batch
        x = self.images[indices].unsqueeze(1).float().div_(255)
        return [x.sub_(0.1307).div_(0.3081), self.labels[indices]]
def as_it_is(batch):
    return batch
loader = DataLoader(Batches(dataset), batch_size=64, shuffle=True, collate_fn=as_it_is)"""

CACHED = """\
class Cached(torch.utils.data.Dataset):  # every sample is made once; random augmentation too
    def __init__(self, dataset):  # before the DataLoader is made: forked workers share it
        self.samples = [dataset[i] for i in range(len(dataset))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        return self.samples[index]
loader = DataLoader(Cached(dataset), batch_size=64, shuffle=True)"""
CACHED_BEFORE = """\
class CachedBefore(torch.utils.data.Dataset):
    def __init__(self, dataset, random):  # samples as they are before the first random transform
        self.samples, self.random = [], random
        for image, label in (dataset[i] for i in range(len(dataset))):
            if hasattr(image, "load"):  # of PIL: its file stays open until its pixels are read
                image.load()
            self.samples.append((image, label))
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        image, label = self.samples[index]
        return self.random(image), label  # drawn again each time
def split_at(transform, name):  # what comes before that transform, and the rest
    steps = [getattr(step, "func", step) for step in transform.transforms]  # of a partial
    first = [getattr(x, "__qualname__", type(x).__name__) for x in steps].index(name)
    before, rest = transform.transforms[:first], transform.transforms[first:]
    before = before or [torch.nn.Identity()]  # v2.Compose takes no empty list
    return type(transform)(before), type(transform)(rest)"""

SCALED = """\
class Scaled:  # the loader's pictures, which come as bytes: scaled as a whole, where they arrive
    def __init__(self, loader, behind, device=None):
        self.loader, self.behind, self.device = loader, behind, device
    def __getattr__(self, name):  # dataset, sampler, …
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        for images, labels in self.loader:
            images = images.to(self.device, non_blocking=True).float().div_(255)
            for step in self.behind:  # Normalize, the same for all of them
                images = step(images)
            yield [images, labels]
def to_bytes(picture):  # ToTensor() without scaling
    array = numpy.array(picture)
    if array.dtype != numpy.uint8:
        raise TypeError(f"pictures of {array.dtype} can't travel as bytes")
    array = array[..., None] if array.ndim == 2 else array
    return torch.from_numpy(array.transpose(2, 0, 1).copy())
def bytes_first(transform):  # up to ToTensor(), and what is behind it
    at = [type(step).__name__ for step in transform.transforms].index("ToTensor")
    before, behind = transform.transforms[:at], transform.transforms[at + 1 :]
    return type(transform)([*before, to_bytes]), behind"""

UINT8 = """\
# In the dataset, in place of ToTensor() and Normalize(mean, std):
image = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1).contiguous()  # uint8, C x H x W
# In the loop: a quarter of the bytes travel, and the device makes floats of them.
mean = torch.tensor(mean, device=device).view(-1, 1, 1)
std = torch.tensor(std, device=device).view(-1, 1, 1)
images = images.to(device, non_blocking=True).float().div_(255).sub_(mean).div_(std)"""

PARSED = """\
# Once, ahead of training: numbers instead of text (parse: what __getitem__ does to one line).
array = numpy.asarray([parse(line) for line in lines], dtype="float32")
numpy.save("parsed.npy", array)
# In the dataset: a row of the file, nothing to parse.
rows = numpy.load("parsed.npy", mmap_mode="r")
sample = torch.from_numpy(rows[index].copy())"""

FORMAT = """\
class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, labels):
        self.rows = torch.tensor(rows)  # once: one array of all lists (of equal length)
        self.labels = torch.tensor(labels)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        return self.rows[index], self.labels[index]  # no conversion per item
loader = DataLoader(Rows(rows, labels), batch_size=64, shuffle=True)
# Lists of unequal length: one long array and where each begins
flat = torch.cat([torch.tensor(row) for row in rows])
sizes = torch.tensor([len(row) for row in rows])
ends = sizes.cumsum(0)
row = flat[ends[index] - sizes[index] : ends[index]]"""

SHARED_ENTRIES = """\
class Entries:  # any entries as bytes in one array: workers read it and copy nothing of it
    def __init__(self, entries):
        data = [pickle.dumps(entry, -1) for entry in entries]
        self.ends = numpy.cumsum([len(one) for one in data])
        self.data = numpy.frombuffer(b"".join(data), dtype=numpy.uint8)
    def __len__(self):
        return len(self.ends)
    def __getitem__(self, index):
        begin = self.ends[index - 1] if index % len(self) else 0
        return pickle.loads(self.data[begin : self.ends[index]])
dataset.samples = Entries(dataset.samples)  # before the DataLoader is made"""

COLUMNS = """\
class Columns(torch.utils.data.Dataset):
    def __init__(self, frame, features, label):  # once: arrays of the columns
        self.x = torch.tensor(frame[features].to_numpy("float32"))
        self.y = torch.tensor(frame[label].to_numpy("int64"))
    def __len__(self):
        return len(self.y)
    def __getitem__(self, index):
        return self.x[index], self.y[index]  # no iloc, no Series
loader = DataLoader(Columns(frame, features, label), batch_size=64, shuffle=True)"""

H5PY = """\
class Rows(torch.utils.data.Dataset):
    def __init__(self, path):
        self.path, self.file = path, None
        with h5py.File(path) as file:
            self.n = len(file["images"])
    def __len__(self):
        return self.n
    def __getitems__(self, indices):  # the batch's rows in one access
        if self.file is None:  # in the worker: an open file must not be forked
            self.file = h5py.File(self.path)
        order = sorted(range(len(indices)), key=indices.__getitem__)  # h5py wants them ascending
        rows = [indices[i] for i in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        x = torch.from_numpy(self.file["images"][rows])[back]
        return x, torch.from_numpy(self.file["labels"][rows])[back]
def as_it_is(batch):
    return batch
loader = DataLoader(Rows(path), batch_size=64, shuffle=True, collate_fn=as_it_is)
# Where it fits in memory, faster still: once
with h5py.File(path) as file:
    images, labels = torch.from_numpy(file["images"][:]), torch.from_numpy(file["labels"][:])
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)"""

ARROW = """\
# Once: the columns as arrays (lists of equal length).
x = torch.from_numpy(numpy.stack(table["features"].to_numpy()))
y = torch.from_numpy(table["label"].to_numpy().copy())
# With Hugging Face datasets: columns = dataset.with_format("torch")[:]; x = columns["features"]
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)"""

PACK_FILES = """\
with webdataset.ShardWriter("train-%06d.tar", maxcount=10_000) as out:  # once
    for i, (image, label) in enumerate(samples):
        out.write({"__key__": f"{i:08d}", "jpg": image, "cls": label})
dataset = webdataset.WebDataset("train-{000000..000099}.tar").shuffle(1000).decode("pil")"""

WARM_COPY = """\
# Once, before training: local disk or memory instead of the cold storage.
#   cp -r /mnt/dataset /dev/shm/dataset
dataset = ImageFolder("/dev/shm/dataset")"""

SHARDS = """\
def __iter__(self):  # of the IterableDataset: every worker reads its own shards
    info = torch.utils.data.get_worker_info()
    first, step = (info.id, info.num_workers) if info is not None else (0, 1)
    for shard in self.shards[first::step]:
        yield from self.read(shard)"""

SAMPLER = """\
class Shuffled(torch.utils.data.Sampler):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __iter__(self):
        yield from torch.randperm(self.n).tolist()  # all indices in one call"""

BY_LENGTH = """\
class ByLength(torch.utils.data.Sampler):  # batches of samples of about one length
    def __init__(self, lengths, batch_size, n_batches=100):
        self.lengths, self.batch_size = lengths, batch_size
        self.chunk = n_batches * batch_size
    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)
    def __iter__(self):
        order = torch.randperm(len(self.lengths)).tolist()
        batches = []
        for start in range(0, len(order), self.chunk):
            part = sorted(order[start : start + self.chunk], key=self.lengths.__getitem__)
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        for i in torch.randperm(len(batches)).tolist():
            yield batches[i]
lengths = [len(sample) for sample in dataset]  # once; better from what is stored
loader = DataLoader(dataset, batch_sampler=ByLength(lengths, batch_size), collate_fn=pad)"""

COLLATE = """\
# Once, ahead of training: the work that collate_fn repeats for every sample.
encoded = [tokenizer(text, truncation=True)["input_ids"] for text in texts]
def collate(samples):  # what is left: padding, vectorised
    return torch.nn.utils.rnn.pad_sequence(
        [torch.as_tensor(s) for s in samples], batch_first=True
    )"""

ON_DEVICE = """\
from torchvision.transforms import v2
augment = v2.Compose(  # in place of the same transforms in the dataset: one call for the batch
    [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)
images = augment(images.to(device, non_blocking=True))  # uint8 in, normalised floats out"""

DECODED = """\
class Encoded(torch.utils.data.Dataset):  # files as they are, with their labels
    def __init__(self, images):
        self.images = images
    def __len__(self):
        return len(self.images)
    def __getitem__(self, index):
        path, label = self.images.samples[index]
        if self.images.target_transform is not None:
            label = self.images.target_transform(label)
        return torchvision.io.read_file(path), label
def joined(samples):  # the files of a batch as one tensor of bytes
    labels = torch.utils.data.default_collate([label for _, label in samples])
    return torch.cat([file for file, _ in samples]), [len(file) for file, _ in samples], labels
class Decoded:  # the loader's batches, decoded and transformed on the device
    def __init__(self, loader, transform, device):
        to_floats = torchvision.transforms.ConvertImageDtype(torch.float32)
        swaps = {"ToTensor": to_floats, "PILToTensor": None, "ToImage": None}  # of PIL images
        own = getattr(transform, "transforms", [transform])  # a Compose's, or one alone
        steps = [swaps.get(type(x).__name__, x) for x in own]
        steps = [x for x in steps if x is not None]
        n = len(steps)  # the last ones are the same for all images: once for a batch
        while n and type(steps[n - 1]).__name__ in ("ConvertImageDtype", "Normalize"):
            n -= 1
        self.each, self.whole = steps[:n], steps[n:]
        self.loader, self.device = loader, device
    def decoded(self, files):  # JPEG files on the device, any other on the CPU
        rgb = torchvision.io.ImageReadMode.RGB
        jpeg = [file[:3].tolist() == [0xFF, 0xD8, 0xFF] for file in files]
        mine = [file for file, is_jpeg in zip(files, jpeg) if is_jpeg]
        done = iter(torchvision.io.decode_jpeg(mine, rgb, self.device) if mine else [])
        others = lambda file: torchvision.io.decode_image(file, rgb).to(self.device)
        return [next(done) if is_jpeg else others(file) for file, is_jpeg in zip(files, jpeg)]
    def called(self, steps, images):
        for step in steps:
            images = step(images)
        return images
    def __getattr__(self, name):  # dataset, sampler, …
        return getattr(self.__dict__["loader"], name)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        for files, lengths, labels in self.loader:
            images = self.decoded(files.split(lengths))
            batch = torch.stack([self.called(self.each, image) for image in images])
            yield [self.called(self.whole, batch), labels]"""

BETWEEN_STEPS = """\
class Prepared(torch.utils.data.Dataset):  # the loop's preprocessing, done by the workers
    def __init__(self, dataset, prepare):
        self.dataset, self.prepare = dataset, prepare
    def __len__(self):
        return len(self.dataset)
    def __getitem__(self, index):
        return self.prepare(self.dataset[index])
# and log, save or print every n steps only
if step % 100 == 0:
    log(loss)"""
