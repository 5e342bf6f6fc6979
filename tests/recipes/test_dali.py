"""`imagefolder --dali`: the real DALI where it is installed, else its boundary written out.

The stand-in below only records what the recipe asks DALI for. That DALI takes these arguments and
answers as the stand-in does is what the tests with the real one show (the extra `dali`; they need
no GPU).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "recipes" / "imagefolder"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HAS_DALI = importlib.util.find_spec("nvidia") is not None and (
    importlib.util.find_spec("nvidia.dali") is not None
)
real = pytest.mark.skipif(not HAS_DALI, reason="needs the extra `dali`")


def recipe_module() -> Any:
    spec = importlib.util.spec_from_file_location("recipe_dali", FOLDER / "dali.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorder:
    """`nvidia.dali.fn`: operators by name, each call kept with its arguments."""

    def __init__(self, calls: dict[str, dict[str, Any]], name: str = "") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self._calls, f"{self._name}.{name}".strip("."))

    def __call__(self, *inputs: object, **arguments: Any) -> Any:
        self._calls[self._name] = arguments
        return (self._name, self._name) if self._name == "readers.file" else self._name


class StandIn:
    """As the real iterator: whole batches of an epoch, labels int32 of shape (n, 1)."""

    made: dict[str, Any]

    def __init__(self, pipelines: list[Any], names: list[str], **arguments: Any) -> None:
        StandIn.made = {"names": names, **pipelines[0].options, **arguments}
        reader = pipelines[0].calls["readers.file"]
        size = pipelines[0].options["batch_size"]
        labels = reader["labels"]
        self._batches = [labels[i : i + size] for i in range(0, len(labels), size)]
        self._batches = [batch for batch in self._batches if len(batch) == size]

    def __iter__(self) -> Iterator[Any]:
        for labels in self._batches:
            images = torch.zeros(len(labels), 3, 8, 8)
            yield [{"images": images, "labels": torch.tensor(labels, dtype=torch.int32)[:, None]}]


@pytest.fixture
def dali(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe's module over the stand-in; `calls` of its last pipeline."""
    calls: dict[str, dict[str, Any]] = {}

    def pipeline_def(define: Callable[..., Any]) -> Callable[..., Any]:
        own = ("batch_size", "num_threads", "device_id", "seed")

        def build(*args: Any, **kwargs: Any) -> Any:
            options = {name: kwargs.pop(name) for name in own}
            define(*args, **kwargs)
            return SimpleNamespace(options=options, calls=calls)

        return build

    package, plugin = ModuleType("nvidia.dali"), ModuleType("nvidia.dali.plugin.pytorch")
    package.__dict__.update(
        fn=Recorder(calls),
        pipeline_def=pipeline_def,
        types=SimpleNamespace(RGB="RGB", FLOAT="FLOAT"),
    )
    plugin.__dict__.update(
        DALIGenericIterator=StandIn, LastBatchPolicy=SimpleNamespace(DROP="DROP")
    )
    for module in (ModuleType("nvidia"), package, ModuleType("nvidia.dali.plugin"), plugin):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = recipe_module()
    found.calls = calls
    return found


def batches(module: Any, samples: list[tuple[str, int]], device: str = "cpu") -> Any:
    return module.DaliBatches(
        samples,
        batch_size=4,
        image_size=32,
        mean=MEAN,
        std=STD,
        device=torch.device(device),
        n_threads=2,
        seed=5,
    )


SAMPLES = [(f"/data/{label}/{i}.jpg", label) for label in (0, 1, 2) for i in range(5)]


def test_files_and_labels_are_those_of_imagefolder_and_epochs_as_long(dali: Any) -> None:
    found = batches(dali, SAMPLES)
    assert dali.calls["readers.file"]["files"] == [path for path, _ in SAMPLES]
    assert dali.calls["readers.file"]["labels"] == [label for _, label in SAMPLES]
    assert len(found) == len(SAMPLES) // 4 == 3  # as with drop_last
    epoch = list(found)
    assert len(epoch) == 3
    for images, labels in epoch:
        assert images.shape[0] == 4
        assert (labels.dtype, labels.shape) == (torch.int64, (4,))
    assert [label for _, labels in epoch for label in labels.tolist()] == [
        label for _, label in SAMPLES[:12]
    ]


def test_augmentation_is_torchvisions_and_pixels_are_normalised_from_bytes(dali: Any) -> None:
    batches(dali, SAMPLES)
    crop = dali.calls["decoders.image_random_crop"]
    assert crop["random_area"] == (0.08, 1.0)
    assert crop["random_aspect_ratio"] == (3 / 4, 4 / 3)
    assert dali.calls["random.coin_flip"] == {"probability": 0.5}
    assert dali.calls["resize"] == {"size": [32, 32]}
    last = dali.calls["crop_mirror_normalize"]
    assert last["mean"] == [255 * value for value in MEAN]
    assert last["std"] == [255 * value for value in STD]
    assert last["output_layout"] == "CHW"


def test_a_gpu_decodes_and_a_cpu_needs_none(dali: Any) -> None:
    batches(dali, SAMPLES)
    assert dali.calls["decoders.image_random_crop"]["device"] == "cpu"
    assert StandIn.made["device_id"] is None
    batches(dali, SAMPLES, "cuda:1")
    assert dali.calls["decoders.image_random_crop"]["device"] == "mixed"
    assert StandIn.made["device_id"] == 1
    assert StandIn.made["last_batch_policy"] == "DROP"
    assert (StandIn.made["batch_size"], StandIn.made["seed"]) == (4, 5)


@pytest.fixture
def pictures(tmp_path: Path) -> list[tuple[str, int]]:
    """15 JPEG files of one colour each: what was decoded tells which file it was."""
    image = pytest.importorskip("PIL.Image")
    found = []
    for i in range(15):
        path = tmp_path / f"{i}.jpg"
        image.new("RGB", (60, 40), (16 * i, 255 - 16 * i, 90)).save(path, quality=95)
        found.append((str(path), i))
    return found


@real
def test_the_real_dali_gives_each_file_its_label_once_an_epoch(
    pictures: list[tuple[str, int]],
) -> None:
    found = batches(recipe_module(), pictures)
    orders = []
    for _ in range(3):
        epoch = list(found)
        assert len(epoch) == 3
        order = [label for _, labels in epoch for label in labels.tolist()]
        assert len(set(order)) == 12  # no sample twice, whatever was left over before
        orders.append(order)
        for images, labels in epoch:
            assert (images.shape, images.dtype) == ((4, 3, 32, 32), torch.float32)
            assert (labels.dtype, labels.shape) == (torch.int64, (4,))
            pixel = torch.tensor([[16 * i, 255 - 16 * i, 90] for i in labels.tolist()]) / 255
            expected = (pixel - torch.tensor(MEAN)) / torch.tensor(STD)
            assert torch.allclose(images.mean((2, 3)), expected, atol=0.06)
    assert orders[0] != orders[1] != orders[2]


@real
@pytest.mark.slow
def test_the_command_measures_the_real_dali_beside_the_loop(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loaderdoctor", "sweep", "--recipe", "imagefolder"),
            *("--grid", "dali=true", "--budget", "60", "--rounds", "1", "--no-ablation"),
            *("--json", str(report), "--output", str(tmp_path / "run")),
            *("--", "--device", "cpu", "--images", "64", "--image-size", "64"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    own, dali = json.loads(report.read_text())["trials"]
    assert (dali["status"], dali["settings"]["dali"]) == ("ok", True)
    for trial in (own, dali):
        assert trial["samples_per_s"] * trial["step_ms"] / 1000 == pytest.approx(8)
        assert trial["epoch_s"] == pytest.approx(8 * trial["step_ms"] / 1000, rel=0.01)


def test_without_dali_the_trial_is_skipped_and_the_script_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from loaderdoctor.commands.sweep import plan

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    asked = plan.SweepOptions(recipe="imagefolder", grid=("dali=true",))
    assert plan.why_no_dali(plan.SweepOptions(recipe="imagefolder")) is None
    assert plan.why_no_dali(asked) == "DALI is not installed: pip install 'loaderdoctor[dali]'"
