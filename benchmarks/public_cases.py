"""The public training scripts: how each runs here, and why the others do not.

A clone is a folder of the project under its own name: `examples` (pytorch/examples), `vision`
(pytorch/vision, its references), `pytorch-image-models` (timm).
"""

from __future__ import annotations

from dataclasses import dataclass, field


def words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """What a script prints of its own time: patterns with one group, in units of `unit_s`."""

    step: str
    wait: str | None = None
    unit_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script, unmodified. `{photos}` and the like in arguments are folders of public_data.

    `at`: data linked to paths relative to the script's folder. `files`: what of the folder is
    copied; all of it if empty. `own_loop`: its batches come from no DataLoader, so that waiting
    for input is nothing by construction; its step is then what its own meter says. `refuses`: there
    is nothing that could be measured, or perhaps not, and it is to be told so in these words.
    """

    name: str
    clone: str
    folder: str
    script: str = "main.py"
    args: tuple[str, ...] = ()
    gpu_args: tuple[str, ...] | None = None
    at: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # a script of the same folder that makes its data
    files: tuple[str, ...] = ()
    path: str = ""  # of the clone, for PYTHONPATH
    needs: tuple[str, ...] = ()  # packages beside torch and torchvision
    meters: Meters | None = None
    own_loop: bool = False
    refuses: str = ""
    options: dict[str, str] = field(default_factory=dict)  # of settings, where they are plain
    on: tuple[str, ...] = ("cpu", "cuda")


IMAGENET = Meters(step=r"Time +([\d.]+) \(", wait=r"Data +([\d.]+) \(")
TIMM_METERS = Meters(step=r"Time: ([\d.]+)s", wait=r"Data: ([\d.]+) \(")
WORDS = Meters(step=r"ms/batch +([\d.]+)", unit_s=1e-3)
REFERENCE = Meters(step=r"time: ([\d.]+) ", wait=r"data: ([\d.]+) ")
WORKERS = {"num_workers": "-j"}
MNIST_AT = {"../data": "mnist"}
TIMM = "--data-dir {many_photos} --num-classes 10 --epochs 100"
VIT = " --model vit_tiny_patch16_224 --aa rand-m9-mstd0.5-inc1 --mixup 0.2"

CASES = (
    Case(
        name="imagenet",
        clone="examples",
        folder="imagenet",
        args=words("{photos} -a mobilenet_v3_small -b 8 -j 2 -p 1"),
        gpu_args=words("{many_photos} -a resnet50"),
        meters=IMAGENET,
        options=WORKERS,
    ),
    Case(
        name="imagenet-dummy",
        clone="examples",
        folder="imagenet",
        args=words("--dummy -a squeezenet1_1 -b 8 -j 2 -p 1"),
        gpu_args=words("--dummy -a resnet50"),
        meters=IMAGENET,
        options=WORKERS,
    ),
    Case(name="mnist", clone="examples", folder="mnist", args=words("--epochs 100"), at=MNIST_AT),
    Case(
        name="mnist-rnn",
        clone="examples",
        folder="mnist_rnn",
        args=words("--epochs 100"),
        gpu_args=words("--epochs 100 --accel"),
        at=MNIST_AT,
    ),
    Case(
        name="mnist-hogwild",
        clone="examples",
        folder="mnist_hogwild",
        args=words("--epochs 100"),
        gpu_args=words("--epochs 100 --cuda"),
        at=MNIST_AT,
    ),
    Case(
        name="mnist-forward-forward",
        clone="examples",
        folder="mnist_forward_forward",
        args=words("--train_size 5000 --epochs 300"),
        refuses="its loop takes no batch a step",
        at={"data": "mnist"},
        own_loop=True,
    ),
    Case(
        name="siamese",
        clone="examples",
        folder="siamese_network",
        args=words("--epochs 100"),
        at=MNIST_AT,
    ),
    Case(name="vae", clone="examples", folder="vae", args=words("--epochs 100"), at=MNIST_AT),
    Case(
        name="dcgan-photos",
        clone="examples",
        folder="dcgan",
        args=words("--dataset folder --dataroot {photos}/train --batchSize 16"),
        gpu_args=words("--dataset folder --dataroot {photos}/train --accel"),
    ),
    Case(
        name="dcgan-fake",
        clone="examples",
        folder="dcgan",
        args=words("--dataset fake --batchSize 16"),
        gpu_args=words("--dataset fake --accel"),
    ),
    Case(
        name="super-resolution",
        clone="examples",
        folder="super_resolution",
        args=words("--upscale_factor 3 --batchSize 4 --testBatchSize 10 --nEpochs 30 --threads 2"),
        gpu_args=words("--upscale_factor 3 --batchSize 4 --nEpochs 200 --accel"),
        at={"dataset": "bsd300"},
        needs=("six",),
    ),
    Case(
        name="fast-neural-style",
        clone="examples",
        folder="fast_neural_style",
        script="neural_style/neural_style.py",
        args=words(
            "train --dataset {few_photos} --save-model-dir . --image-size 128 --batch-size 2 "
            "--epochs 20 --log-interval 1"
        ),
        gpu_args=words("train --dataset {photos} --save-model-dir . --epochs 20 --accel"),
        env={"TORCH_HOME": "{vgg16}"},
    ),
    Case(
        name="word-language-model",
        clone="examples",
        folder="word_language_model",
        args=words("--data {text} --log-interval 10"),
        gpu_args=words("--data {text} --log-interval 10 --accel"),
        meters=WORDS,
        own_loop=True,
    ),
    Case(
        name="word-language-model-transformer",
        clone="examples",
        folder="word_language_model",
        args=words("--data {text} --log-interval 10 --model Transformer --lr 5"),
        gpu_args=words("--data {text} --log-interval 10 --model Transformer --lr 5 --accel"),
        meters=WORDS,
        own_loop=True,
    ),
    Case(
        name="time-sequence",
        clone="examples",
        folder="time_sequence_prediction",
        script="train.py",
        args=words("--steps 30"),
        before=("generate_sine_wave.py",),
        env={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its file is a pickle of numpy's
        needs=("matplotlib",),
        own_loop=True,
        refuses="no torch DataLoader was iterated",  # where five steps take longer than 30 s
        on=("cpu",),
    ),
    Case(
        name="regression",
        clone="examples",
        folder="regression",
        own_loop=True,
        refuses="no torch DataLoader was iterated",
        on=("cpu",),
    ),
    Case(
        name="ddp-series-single-gpu",
        clone="examples",
        folder="distributed/ddp-tutorial-series",
        script="single_gpu.py",
        gpu_args=words("100 10"),
        on=("cuda",),
    ),
    Case(
        name="torchvision-classification",
        clone="vision",
        folder="references/classification",
        script="train.py",
        args=words(
            "--data-path {photos} --device cpu --model mobilenet_v3_small -b 8 -j 2 --print-freq 1"
        ),
        gpu_args=words("--data-path {many_photos} --model resnet50"),
        meters=REFERENCE,
        options=WORKERS,
    ),
    Case(
        name="torchvision-segmentation",
        clone="vision",
        folder="references/segmentation",
        script="train.py",
        args=words(
            "--data-path {voc} --dataset voc --device cpu -b 2 -j 2 --print-freq 1 "
            "--model lraspp_mobilenet_v3_large"
        ),
        gpu_args=words("--data-path {voc} --dataset voc --model lraspp_mobilenet_v3_large"),
        needs=("pycocotools",),
        meters=REFERENCE,
        options=WORKERS,
    ),
    Case(
        name="torchvision-similarity",
        clone="vision",
        folder="references/similarity",
        script="train.py",
        args=words("--dataset-dir {mnist} --workers 2 --epochs 50"),
        gpu_args=words("--dataset-dir {mnist} --epochs 50"),
    ),
    Case(
        name="timm-train",
        clone="pytorch-image-models",
        folder="",
        script="train.py",
        files=("train.py",),
        path=".",
        args=words(
            TIMM + " --device cpu --model mobilenetv3_small_050 -b 16 -j 2 --log-interval 1"
        ),
        gpu_args=words(TIMM),
        needs=("huggingface_hub", "safetensors", "yaml"),
        meters=TIMM_METERS,
        options=WORKERS | {"pin_memory": "--pin-mem"},
    ),
    Case(
        name="timm-train-vit",
        clone="pytorch-image-models",
        folder="",
        script="train.py",
        files=("train.py",),
        path=".",
        args=words(TIMM + VIT + " --device cpu -b 8 -j 2 --log-interval 1"),
        gpu_args=words(TIMM + VIT + " --amp"),
        needs=("huggingface_hub", "safetensors", "yaml"),
        meters=TIMM_METERS,
        options=WORKERS | {"pin_memory": "--pin-mem"},
    ),
)

NETWORK = "fetches its data at every start"
EXCLUDED = {
    "examples/gcn": NETWORK,
    "examples/gat": NETWORK,
    "examples/language_translation": "needs torchtext, which is no longer made, and spaCy's models",
    "examples/legacy/snli": "needs torchtext, which is no longer made",
    "examples/reinforcement_learning": "needs gymnasium's environments; it has no batches",
    "examples/fx": "no training",
    "examples/cpp": "C++",
    "examples/distributed/FSDP": "needs two GPUs and fetches T5",
    "examples/distributed/FSDP2": "needs two GPUs",
    "examples/distributed/tensor_parallelism": "needs two GPUs",
    "examples/distributed/minGPT-ddp": "needs two GPUs",
    "examples/distributed/ddp": "one step",
    "examples/distributed/ddp-tutorial-series/multi*.py": "needs two GPUs",
    "examples/distributed/rpc": "needs RPC workers; its loops train no step of 50",
    "vision/references/classification/train_quantization.py": "fetches pretrained weights",
    "vision/references/detection": "needs pycocotools and COCO's annotations",
    "vision/references/depth": "needs a GPU and stereo data sets",
    "vision/references/optical_flow": "needs a GPU and optical-flow data sets",
    "vision/references/video_classification": "needs Kinetics' videos and a decoder of them",
    "pytorch-image-models/validate.py": "does not train",
    "pytorch-image-models/inference.py": "does not train",
}
