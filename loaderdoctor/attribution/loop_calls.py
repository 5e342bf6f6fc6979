"""What a line of the loop does, told from the library or function that it calls."""

from __future__ import annotations

import builtins

from loaderdoctor.facts.loop_lines import What
from loaderdoctor.instrument.wire.stack_records import StackPlace

# By the last name of the call.
_CALLS: dict[str, What] = {
    "item": "item",
    "cpu": "to-host",
    "numpy": "to-host",
    "tolist": "elements",
    "synchronize": "sync",
    "print": "print",
    "sleep": "sleep",
    "deepcopy": "deepcopy",
    "savefig": "plot",
    "collect": "collect",
    "empty_cache": "collect",
    "open": "files",
    "write": "files",
    "read": "files",
    "flush": "files",
    "fsync": "files",
    "savez": "save",
    "dump": "save",
}
# By the module, or its package; longer names first.
_MODULES: dict[str, What] = {
    "torch.serialization": "save",
    "torch.utils.tensorboard": "tracking",
    "torch.cuda": "sync",
    "safetensors": "save",
    "pickle": "save",
    "joblib": "save",
    "numpy.lib": "save",
    "copy": "deepcopy",
    **dict.fromkeys(("pandas", "polars", "pyarrow", "datasets"), "table"),
    **dict.fromkeys(
        ("sklearn", "torchmetrics", "torcheval", "evaluate", "seqeval", "scipy", "pycocotools"),
        "metrics",
    ),
    **dict.fromkeys(("matplotlib", "seaborn", "plotly", "bokeh", "mpl_toolkits"), "plot"),
    **dict.fromkeys(("logging", "tqdm", "rich", "loguru", "structlog"), "print"),
    **dict.fromkeys(
        ("wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "aim", "clearml"),
        "tracking",
    ),
    **dict.fromkeys(
        ("PIL", "cv2", "skimage", "torchvision", "albumentations", "kornia", "imgaug"), "image"
    ),
    **dict.fromkeys(
        ("tokenizers", "transformers", "nltk", "spacy", "sentencepiece", "re", "json"), "text"
    ),
    **dict.fromkeys(("requests", "urllib", "urllib3", "http", "ssl", "socket", "boto3"), "network"),
    "subprocess": "process",
    "numpy": "numpy",
    "gc": "collect",
    # Of the standard library what works on one element after another.
    **dict.fromkeys(
        ("random", "itertools", "collections", "functools", "heapq", "math", "statistics"),
        "elements",
    ),
}
_ROOTS: dict[str, What] = {"np": "numpy", "numpy": "numpy", "plt": "plot", "cv2": "image"}
# Methods and functions of Python's own types: what a loop over elements is made of.
_PLAIN = frozenset(
    (
        *dir(list),
        *dir(dict),
        *dir(str),
        *dir(set),
        *dir(float),
        *dir(builtins),
    )
)
# Python of torch's that a loop calls and that is no operator.
_ELEMENTS = ("Tensor.__iter__", "Tensor.tolist")


def is_operator(place: StackPlace) -> bool:
    """Whether the loop calls an operator of torch there, which is computing, not work of its own.

    Operators such as `+` show in samples only where their C code lets the interpreter go.
    """
    module = place.module or ""
    if module == "torch" or module.startswith("torch."):
        known = _of_module(module)
        return known is None and place.function not in _ELEMENTS and _of_call(place) is None
    return place.operator


def what_of(place: StackPlace) -> What:
    """What the loop does there."""
    found = _of_call(place)
    if found is not None:
        return found
    if place.module is not None:
        if place.function in _ELEMENTS:
            return "elements"
        return _of_module(place.module) or "library"
    if place.call is None:
        return "elements"
    root, _, _ = place.call.partition(".")
    plain = place.call.rpartition(".")[2] in _PLAIN
    return _ROOTS.get(root) or ("elements" if plain else "library")


def package_of(place: StackPlace) -> str | None:
    """The package whose function the loop calls there; None for its own code and built-ins."""
    return place.module.partition(".")[0] if place.module is not None else None


def _of_call(place: StackPlace) -> What | None:
    if place.call is None:
        return None
    name = place.call.rpartition(".")[2]
    if name == "save":
        return "save" if place.module is None or place.call.startswith("torch.") else None
    return _CALLS.get(name)


def _of_module(module: str) -> What | None:
    while module:
        if module in _MODULES:
            return _MODULES[module]
        module = module.rpartition(".")[0]
    return None
