"""Makes a folder of real JPEG files of ImageNet's usual size, cut out of two photos.

The files lie as torchvision's ImageFolder expects them, `<class>/<number>.jpg`: 500x375 pixels,
about 80 kB each. A class is a photo and which fifth of the free width the cut-out was taken from.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOS = Path(__file__).resolve().parent.parent / "_photos"
NAMES = ("china", "flower")
N_BANDS = 5
N_CLASSES = len(NAMES) * N_BANDS
SIZE = (500, 375)
QUALITY = 96
PREFIX = "cutouts-"


class DataError(Exception):
    """The folder can't be used or made; the message says why."""


def default_folder() -> Path:
    """Where the files go if nobody says: a folder of this user's own under the temporary one."""
    return Path(tempfile.gettempdir()) / f"imagefolder-recipe-{_user()}"


def has_classes(folder: Path) -> bool:
    """Whether it holds class folders that somebody else put there."""
    return folder.is_dir() and any(
        entry.is_dir() and not entry.name.startswith((".", PREFIX)) for entry in folder.iterdir()
    )


def make_cutouts(folder: Path, n_images: int) -> Path:
    """The folder of class folders with `n_images` files below `folder`, made if it is not there.

    The files are written beside their final place and renamed into it when all are complete, so a
    run that is killed leaves no half folder and two runs at once end with the same one. Raises
    DataError.
    """
    root = folder / f"{PREFIX}{n_images}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder == default_folder() and folder.stat().st_uid != _user():
            raise DataError(f"{folder}: belongs to somebody else. Give another --data-dir.")
        if root.is_dir():
            return root
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
        try:
            _write(unfinished, n_images)
            try:
                unfinished.rename(root)
            except OSError:
                if not root.is_dir():  # else another run was first, with the same files
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{folder}: can't make the images there ({error}).") from error
    return root


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows: the folder is the user's anyway


def _write(root: Path, n_images: int) -> None:
    photos = [Image.open(PHOTOS / f"{name}.jpg").convert("RGB") for name in NAMES]
    for label in range(N_CLASSES):
        (root / _class_name(label)).mkdir()
    shutil.copy(PHOTOS / "ATTRIBUTION.txt", root)
    draws = np.random.default_rng(0).random((n_images, 4))

    def write(index: int) -> None:
        label = index % N_CLASSES
        photo = photos[label // N_BANDS]
        across, down, scale, mirrored = draws[index].tolist()
        width = 440 + 110 * scale
        height = width * SIZE[1] / SIZE[0]
        left = (photo.width - width) * (label % N_BANDS + across) / N_BANDS
        top = (photo.height - height) * down
        image = photo.resize(
            SIZE, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height)
        )
        if mirrored < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image.save(root / _class_name(label) / f"{index:05}.jpg", quality=QUALITY)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # Pillow lets go of the GIL
        for _ in pool.map(write, range(n_images)):
            pass


def _class_name(label: int) -> str:
    return f"{NAMES[label // N_BANDS]}-{label % N_BANDS + 1}"
