"""The same images by NVIDIA DALI: reads, decodes, crops, flips and normalises in its own threads.

On a GPU everything from the decoding on happens there. DALI takes the place of the DataLoader's
work, not of the DataLoader: its batches come out of an IterableDataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from torch import Tensor
from torch.utils.data import IterableDataset

READER = "files"
# As torchvision's RandomResizedCrop draws them by default.
AREA, ASPECT_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@pipeline_def
def images_and_labels(
    samples: Sequence[tuple[str, int]],
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    on_gpu: bool,
) -> tuple[Any, Any]:
    """Each file once an epoch in a new order, with the label that ImageFolder gives it."""
    files, labels = fn.readers.file(
        name=READER,
        files=[path for path, _ in samples],
        labels=[label for _, label in samples],
        shuffle_after_epoch=True,
        pad_last_batch=True,  # so that the next epoch begins with its own first sample
    )
    images = fn.decoders.image_random_crop(
        files,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        random_area=AREA,
        random_aspect_ratio=ASPECT_RATIO,
    )
    images = fn.resize(images, size=[image_size, image_size])
    images = fn.crop_mirror_normalize(
        images,
        mirror=fn.random.coin_flip(probability=0.5),
        mean=[255 * value for value in mean],
        std=[255 * value for value in std],
        dtype=types.FLOAT,
        output_layout="CHW",
    )
    return images, labels


class DaliBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Whole batches, as a loader with shuffle and drop_last gives them; no batch size of its own.

    Images are where the pipeline ends, on the GPU or not; labels are int64 in host memory.
    """

    def __init__(
        self,
        samples: Sequence[tuple[str, int]],
        *,
        batch_size: int,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        n_threads: int,
        seed: int,
    ) -> None:
        self.n_batches = len(samples) // batch_size
        on_gpu = device.type == "cuda"
        pipeline = images_and_labels(
            samples,
            image_size,
            mean,
            std,
            on_gpu=on_gpu,
            batch_size=batch_size,
            num_threads=n_threads,
            device_id=(device.index or 0) if on_gpu else None,
            seed=seed,
        )
        self.iterator = DALIGenericIterator(
            [pipeline],
            ["images", "labels"],
            reader_name=READER,
            last_batch_policy=LastBatchPolicy.DROP,
            auto_reset=True,
        )

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for (batch,) in self.iterator:
            yield batch["images"], batch["labels"].squeeze(-1).long()
