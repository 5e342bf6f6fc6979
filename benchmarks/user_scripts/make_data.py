"""Makes the small data sets that the scripts of this folder read, in ./data: run it first."""

import csv
import random
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path("data")


def photos(n=300):
    """Smooth pictures with noise, as JPEG files in a folder a class."""
    drawn = np.random.default_rng(0)
    for i in range(n):
        small = Image.fromarray(drawn.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        large = np.asarray(small.resize((480, 360), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(large + drawn.integers(-12, 12, large.shape), 0, 255).astype(np.uint8)
        file = FOLDER / "photos" / ("cats", "dogs", "owls")[i % 3] / f"{i:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(file, quality=90)


def table(n=20_000):
    drawn = random.Random(0)
    with (FOLDER / "houses.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["area", "rooms", "year", "district", "floor", "price"])
        for _ in range(n):
            area, rooms = drawn.uniform(20, 200), drawn.randint(1, 7)
            year, district = drawn.randint(1900, 2024), drawn.choice(["north", "south", "west"])
            price = 1000 * area + 5000 * rooms + 50 * (year - 1900) + drawn.gauss(0, 5000)
            rows.writerow([f"{area:.1f}", rooms, year, district, drawn.randint(0, 9), f"{price:.0f}"])


def reviews(n=6000):
    drawn = random.Random(1)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(2, 9))) for _ in range(3000)]
    with (FOLDER / "reviews.tsv").open("w") as file:
        for i in range(n):
            text = " ".join(drawn.choices(words, k=drawn.randint(30, 120)))
            file.write(f"{i % 2}\t{text}.\n")


def recordings(n=240, seconds=2.0, rate=8000):
    drawn = np.random.default_rng(2)
    time = np.arange(int(seconds * rate)) / rate
    tones = drawn.uniform(100, 2000, (n, 3))
    waves = sum(np.sin(2 * np.pi * tones[:, i : i + 1] * time) for i in range(3))
    np.save(FOLDER / "recordings.npy", (waves * 8000).astype(np.int16))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    photos()
    table()
    reviews()
    recordings()
