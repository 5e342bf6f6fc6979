"""Small real datasets, each of which converts one format for every sample; and look-alikes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

N = 64
WIDTH = 400


class OfLists(Dataset[Any]):
    """Lists of floats become tensors."""

    def __init__(self) -> None:
        self.rows = [[float(i + k) for k in range(20 * WIDTH)] for i in range(N)]
        self.labels = list(range(N))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor(self.rows[index]), self.labels[index]


class OfText(OfLists):
    """Lines of JSON."""

    def __init__(self) -> None:
        self.lines = [json.dumps([i + k for k in range(10 * WIDTH)]) for i in range(N)]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        numbers = json.loads(self.lines[index])
        return torch.from_numpy(np.array(numbers[:8], dtype="float32")), index


class OfFrame(Dataset[Any]):
    """Rows of a pandas frame."""

    def __init__(self) -> None:
        import pandas

        self.frame = pandas.DataFrame({f"c{k}": np.arange(float(N)) for k in range(8)})
        self.frame["label"] = np.arange(N)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.frame.iloc[index]
        return torch.tensor(row.iloc[:8].to_numpy("float32")), int(row["label"])


class OfHdf5(Dataset[Any]):
    """Rows of an HDF5 file, one at a time."""

    def __init__(self, path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            file["images"] = np.arange(N * 16, dtype="float32").reshape(N, 16)
            file["labels"] = np.arange(N)
        self.images = h5py.File(path)["images"]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[index]), index


class OfArrow(Dataset[Any]):
    """A column of lists in an Arrow table."""

    def __init__(self) -> None:
        import pyarrow

        rows = [[float(i + k) for k in range(WIDTH)] for i in range(N)]
        self.table = pyarrow.table({"features": rows, "label": list(range(N))})

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        features = self.table["features"][index].as_py()
        return torch.tensor(features), index


class OfImages(Dataset[Any]):
    """As torchvision's MNIST: an array becomes a PIL image, and that a tensor."""

    def __init__(self, transform: Any = None) -> None:
        generator = torch.Generator().manual_seed(3)
        self.data = torch.randint(0, 256, (N, 28, 28), generator=generator, dtype=torch.uint8)
        self.targets = torch.arange(N)
        self.transform = transform or transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.data[index].numpy())
        return self.transform(image), int(self.targets[index])


class OfColours(OfImages):
    """As torchvision's CIFAR10: an array with the channels last."""

    def __init__(self) -> None:
        super().__init__(
            transforms.Compose(
                [transforms.ToTensor(), transforms.Normalize((0.49, 0.48, 0.44), (0.2, 0.3, 0.4))]
            )
        )
        chance = np.random.default_rng(3)
        self.data: Any = chance.integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)
        self.targets: Any = list(range(N))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.data[index])
        return self.transform(image), self.targets[index]


class Decoding(Dataset[Any]):
    """JPEG files: ToTensor is the end of decoding, no round trip."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{i}.jpg" for i in range(8)]
        chance = np.random.default_rng(3)
        for path in self.paths:
            pixels: NDArray[np.uint8] = chance.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
        self.transform = transforms.Compose([transforms.ToTensor()])

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index % 8]) as image:
            return self.transform(image.convert("RGB")), index


class OfArrays(Dataset[Any]):
    """Nothing to convert: rows of one tensor, and some arithmetic."""

    def __init__(self) -> None:
        self.rows = torch.arange(float(N * 100 * WIDTH)).view(N, 100 * WIDTH)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index].sin()[:8], index
