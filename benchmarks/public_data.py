"""Data for public scripts that would fetch theirs: made here, and laid where they look for it.

Photos are cut out of the two that the image recipe ships, digits are MNIST's that the mnist recipe
ships, repeated to about the full set's size; text is of invented words as frequent as those of
English. What a script makes of its data is not what is judged: files have the usual size and form.
"""

from __future__ import annotations

import gzip
import math
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

RECIPES = Path(__file__).parents[1] / "recipes"
REPEATS = {"train": 13, "t10k": 4}  # of 4,500 and 500 digits
N_WORDS = {"train": 400_000, "valid": 40_000, "test": 40_000}
VOCABULARY = 10_000


def photos(root: Path, n_images: int, times: int = 1) -> Path:
    """`train/<class>/*.jpg` and `val/…` as ImageFolder reads them; 500x375 pixels, 80 kB each.

    `times`: so many names for each training image, so that epochs are long.
    """
    target = root / f"photos-{n_images}-{times}"
    if not target.exists():
        made = _cutouts(root / "cutouts", n_images)
        few = _cutouts(root / "cutouts", max(20, n_images // 20))
        for name, source, n in (("train", made, times), ("val", few, 1)):
            for file in source.glob("*/*.jpg"):
                folder = target / name / file.parent.name
                folder.mkdir(parents=True, exist_ok=True)
                for i in range(n):
                    (folder / f"{file.stem}-{i}.jpg").hardlink_to(file)
    return target


def mnist(root: Path) -> Path:
    """Digits in `MNIST/raw` and `FashionMNIST/raw`, where torchvision looks before it downloads."""
    target = root / "mnist"
    if not target.exists():
        raw = target / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for half, repeats in REPEATS.items():
            for name in (f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte"):
                source = RECIPES / "mnist" / "data" / f"{name}.gz"
                (raw / name).write_bytes(_repeated(gzip.decompress(source.read_bytes()), repeats))
        shutil.copytree(target / "MNIST", target / "FashionMNIST")
    return target


def bsd300(root: Path) -> Path:
    """`BSDS300/images/train` and `test`, 200 and 100 photos of 481x321 pixels."""
    from PIL import Image

    target = root / "dataset"
    if not target.exists():
        images = sorted(photos(root, 400).glob("train/*/*.jpg"))
        for name, files in (("train", images[:200]), ("test", images[200:300])):
            folder = target / "BSDS300" / "images" / name
            folder.mkdir(parents=True)
            for i, file in enumerate(files):
                with Image.open(file) as image:
                    image.resize((481, 321)).save(folder / f"{i:05}.jpg", quality=95)
    return target


def voc(root: Path) -> Path:
    """`VOCdevkit/VOC2012` with 400 photos and masks of rectangles, as VOCSegmentation reads it."""
    from PIL import Image

    target = root / "voc"
    base = target / "VOCdevkit" / "VOC2012"
    if not target.exists():
        images = sorted(photos(root, 400).glob("train/*/*.jpg"))
        for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
            (base / name).mkdir(parents=True)
        rng = np.random.default_rng(0)
        for i, file in enumerate(images):
            shutil.copy(file, base / "JPEGImages" / f"{i:06}.jpg")
            mask = np.zeros((375, 500), dtype=np.uint8)
            x, y = rng.integers(0, 300), rng.integers(0, 200)
            mask[y : y + 150, x : x + 180] = rng.integers(1, 21)
            Image.fromarray(mask).save(base / "SegmentationClass" / f"{i:06}.png")
        names = [f"{i:06}" for i in range(len(images))]
        for part, some in (("train", names[:-20]), ("val", names[-20:])):
            text = "\n".join(some) + "\n"
            (base / "ImageSets" / "Segmentation" / f"{part}.txt").write_text(text)
    return target


def text(root: Path) -> Path:
    """`train.txt`, `valid.txt` and `test.txt` as WikiText-2 has them: lines of words."""
    target = root / "text"
    if not target.exists():
        target.mkdir(parents=True)
        rng = np.random.default_rng(0)
        weights = 1 / np.arange(1, VOCABULARY + 1)
        for name, n in N_WORDS.items():
            drawn = rng.choice(VOCABULARY, size=n, p=weights / weights.sum())
            words = [f"w{i}" for i in drawn.tolist()]
            lines = [" " + " ".join(words[i : i + 20]) + " \n" for i in range(0, n, 20)]
            (target / f"{name}.txt").write_text("".join(lines))
    return target


def vgg16(root: Path) -> Path:
    """A folder for TORCH_HOME with weights of VGG-16 drawn at random, under the real ones' name."""
    target = root / "torch-home"
    file = target / "hub" / "checkpoints" / "vgg16-397923af.pth"
    if not file.exists():
        import torch
        import torchvision

        file.parent.mkdir(parents=True)
        unfinished = file.with_suffix(".part")
        torch.save(torchvision.models.vgg16(weights=None).state_dict(), unfinished)
        unfinished.rename(file)
    return target


MAKERS: dict[str, Callable[[Path], Path]] = {
    "photos": lambda root: photos(root, 2000),
    "many_photos": lambda root: photos(root, 2000, times=40),
    "few_photos": lambda root: photos(root, 400),
    "mnist": mnist,
    "bsd300": bsd300,
    "voc": voc,
    "text": text,
    "vgg16": vgg16,
}


def _cutouts(folder: Path, n_images: int) -> Path:
    sys.path.insert(0, str(RECIPES / "imagefolder"))
    try:
        from cutouts import make_cutouts
    finally:
        del sys.path[0]
    made: Path = make_cutouts(folder, n_images)
    return made


def _repeated(idx: bytes, repeats: int) -> bytes:
    """The same IDX file with its items so many times."""
    n_dimensions = idx[3]
    header = 4 + 4 * n_dimensions
    n, *item = struct.unpack(f">{n_dimensions}I", idx[4:header])
    shape = struct.pack(f">{n_dimensions}I", n * repeats, *item)
    return idx[:4] + shape + idx[header : header + n * math.prod(item)] * repeats
