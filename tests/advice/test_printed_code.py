"""Every block of code that a report prints fits the script it is about: 30 scripts, 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.advice.code import written_together
from loaderdoctor.advice.fit_transforms import cached_before, scaled_whole
from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.advice.source import unknown_names
from loaderdoctor.advice.writing import written
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Kind
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.report import model
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.answers import recommendations
from tests.advice.printed import applied, blocks, facts_of, finding, printed, scripts

SETTINGS = (
    Settings(num_workers=7),
    Settings(num_workers=7, persistent_workers=True, prefetch_factor=4),
    Settings(num_workers=0),
    Settings(pin_memory=True, non_blocking=True),
    Settings(in_order=False, batch_size=16),
    Settings(background="host"),
    Settings(side_stream=True),
    Settings(resident=True),
    Settings(cudnn_benchmark=True, tf32=True),
    Settings(num_threads=2),
    Settings(batched=True, num_workers=0),
    Settings(cache=True, batched=True, num_workers=0),
    Settings(cache=True),
    Settings(threads=4, num_workers=0),
    *(Settings(worker_cpus=x, num_workers=2) for x in ("all", "apart", "numa")),
    *(Settings(worker_gc=x, num_workers=2) for x in ("frozen", "rarely")),
    Settings(packed=True, pin_memory=True, non_blocking=True),
    Settings(zero_grad_none=True, fused_optimizer=True),
)
# Names that no example may bring into a script that has none of them.
STOCK = ("batch_size=256", "batch_size=64", "tokenizer", "texts", "root")


def rows_of(facts: Facts, settings: Settings) -> list[model.Recommendation]:
    """What a diagnosis recommends where these settings did best."""
    return list(
        recommendations(
            settings,
            own={},
            written=lambda name: written(facts, written_together(settings, name)),
            caution=lambda name, value: None,
            summary=None,
            measured=None,
        )
    )


def advised(facts: Facts, kind: Kind, text: str, name: str) -> list[model.Recommendation]:
    """What is advised for one finding."""
    return [
        model.Recommendation(
            setting=advice.title, from_=None, to=None, code=advice.code or "",
            idea=None if advice.code else advice.idea, predicted_step_ms=None,
            measured_step_ms=None, measured_ci_ms=None,
        )
        for advice in code_advice(facts, [finding(kind, text, name)])
    ]  # fmt: skip


def fits(rows: list[model.Recommendation], text: str) -> int:
    """How many blocks the report of these holds; each row's fit the script."""
    apart = [msgspec.structs.replace(row, setting="x", from_=None, to=None) for row in rows]
    found = blocks(printed(apart))
    n = 0
    for row in rows:
        if not row.code:
            assert row.idea or row.command
            continue
        mine: list[list[str]] = []
        lines = [line for line in row.code.splitlines() if line.strip()]
        while sum(bool(line.strip()) for block in mine for line in block) < len(lines):
            mine.append(found[n])
            n += 1
        assert [line for block in mine for line in block if line.strip()] == lines, row.code
        after = applied(text, mine)
        compile(after, "script", "exec")
        assert unknown_names(after) <= unknown_names(text), row.code
        assert after != text
        assert not any(x in after and x not in text for x in STOCK), row.code
    assert n == len(found)
    return n


@pytest.mark.parametrize("path", scripts(), ids=lambda p: p.stem)
def test_what_is_printed_for_a_setting_compiles_in_its_place(path: Path) -> None:
    text, facts = path.read_text(), facts_of(path)
    fits([row for settings in SETTINGS for row in rows_of(facts, settings)], text)
    workers = rows_of(facts, Settings(num_workers=7))
    exotic = path.stem in ("own_names", "prefetcher")
    assert fits(workers, text) or exotic, "no line for the number of workers"


@pytest.mark.parametrize("path", scripts(), ids=lambda p: p.stem)
def test_what_is_printed_for_a_finding_compiles_in_its_place(path: Path) -> None:
    text, facts = path.read_text(), facts_of(path)
    fits([row for kind in Kind for row in advised(facts, kind, text, path.name)], text)


def run(path: Path, text: str) -> str:
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, path.name], cwd=path.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_thirty_scripts_with_many_shapes() -> None:
    assert len(scripts()) >= 30
    assert len({path.read_text() for path in scripts()}) == len(scripts())


def code_of(name: str, settings: Settings) -> str:
    path = next(p for p in scripts() if p.stem == name)
    text = path.read_text()
    return applied(text, blocks(written(facts_of(path), settings).code))


KEPT_WORKERS = Settings(num_workers=2, persistent_workers=True)


def test_a_loader_built_in_each_epoch_moves_out_of_their_loop() -> None:
    after = code_of("each_epoch", KEPT_WORKERS)
    built, loop = after.index("loader = DataLoader("), after.index("for epoch in range(epochs)")
    assert built < loop and after.count("DataLoader(") == 1
    after = code_of("inline", KEPT_WORKERS)
    assert after.index("loader = DataLoader(") < after.index("for epoch in range(2)")
    assert "for (x,) in loader:" in after


def test_what_a_helper_builds_in_each_epoch_is_changed_there_and_said() -> None:
    path = next(p for p in scripts() if p.stem == "helper")
    said = written(facts_of(path), KEPT_WORKERS)
    assert "persistent_workers=True" in said.code
    assert said.idea is not None and said.idea.startswith("Build the loader once, before the loop")


# Samples that are only iterated are kept by no advice.
RUN = [
    pytest.param(path, settings, id=f"{path.stem}-{name}")
    for path in scripts()
    for name, settings in (("workers", KEPT_WORKERS), ("kept", Settings(cache=True)))
    if not (settings.cache and "IterableDataset" in path.read_text())
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "settings"), RUN)
def test_a_script_with_the_printed_block_runs(
    path: Path, settings: Settings, tmp_path: Path
) -> None:
    text, facts = path.read_text(), facts_of(path)
    codes = blocks(printed(rows_of(facts, settings)[:1]))
    assert codes or path.stem in ("own_names", "prefetcher") or settings.cache
    said = run(tmp_path / path.name, applied(text, codes)) if codes else ""
    if codes and "print(total)" in text:  # of batches alone, not of a model that begins at random
        assert said == run(tmp_path / "own.py", text)


def test_samples_are_kept_before_the_random_transform_of_the_script() -> None:
    path = next(p for p in scripts() if p.stem == "images")
    flip = "class RandomFlip:\n    def __call__(self, x):\n        return x.flip(-1)\n\n\ndevice ="
    text = path.read_text().replace("device =", flip, 1)
    text = text.replace("Compose([lambda", "Compose([RandomFlip(), lambda")
    facts = facts_of(path, text=text)
    code = cached_before(facts, "RandomFlip")
    assert code is not None
    after = applied(text, blocks(code))
    assert 'train_set.transform, drawn = split_at(train_set.transform, "RandomFlip")' in after
    assert "DataLoader(CachedBefore(train_set, drawn), batch_size=8, shuffle=True)" in after
    exec(compile(after, "images.py", "exec"), {"__name__": "__main__"})
    unnamed = text.replace(
        "train_loader = DataLoader(train_set", "train_loader = DataLoader(list(train_set)"
    )
    assert cached_before(facts_of(path, text=unnamed), "RandomFlip") is None


AS_VISION = """class ToTensor:
    def __call__(self, x):
        return torch.as_tensor(numpy.asarray(x))[None].float().div(255)


class Normalize:
    def __call__(self, x):
        return (x - 0.25) / 0.5


torch.manual_seed(0)
device ="""


def scaled(changed: tuple[str, str] = ("", "")) -> tuple[str, Facts]:
    """The script of images with torchvision's names for what its transforms do."""
    path = next(p for p in scripts() if p.stem == "images")
    text = path.read_text().replace("device =", AS_VISION, 1).replace("import torch", IMPORTS, 1)
    text = re.sub(r"Compose\(\[lambda.*\]\)\)", "Compose([ToTensor(), Normalize()]))", text)
    assert changed[0] in text
    text = text.replace(*changed, 1)
    labels = TensorRecord(path="[1]", shape=(8,), dtype="int64", n_bytes=64)
    return text, facts_of(path, text=text, loader={"batch": (PICTURES, labels)})


IMPORTS = "import numpy\nimport torch"
PICTURES = TensorRecord(path="[0]", shape=(8, 1, 6, 6), dtype="float32", n_bytes=1152)
RETURNED = "        return self.transform(self.data[i]), int(self.targets[i])"


def test_pictures_scaled_as_a_whole_train_the_same() -> None:
    text, facts = scaled()
    code = scaled_whole(facts, ("ToTensor", "Normalize"))
    assert code is not None
    after = applied(text, blocks(code))
    assert "train_set.transform, behind = bytes_first(train_set.transform)\n" in after
    assert "Scaled(DataLoader(train_set, batch_size=8, shuffle=True), behind, device)" in after
    found = []
    for script in (text, after):
        scope = {"__name__": "__main__"}
        exec(compile(script, "images.py", "exec"), scope)
        found.append(scope["losses"])
    assert found[0] == found[1] and len(found[0]) == 8


@pytest.mark.parametrize(
    "changed",
    [
        ("model = ", "first = train_set[0]\nmodel = "),
        ("model = ", "held_out = DataLoader(train_set)\nmodel = "),
        ("train_loader = ", "behind = 1\ntrain_loader = "),
    ],
    ids=["a sample is read", "another loader reads it", "its name is taken"],
)
def test_a_transform_that_others_rely_on_is_left_alone(changed: tuple[str, str]) -> None:
    facts = scaled(changed)[1]
    assert scaled_whole(facts, ("ToTensor",)) is None
    assert scaled_whole(scaled(("model = ", "n = len(train_set)\nmodel = "))[1], ("ToTensor",))
    if "behind" not in changed[1]:
        assert cached_before(facts, "Normalize") is None
    assert scaled_whole(scaled()[1], ("ConvertImageDtype",)) is None


@pytest.mark.parametrize(
    ("returned", "is_first"),
    [
        ("return self.transform(self.data[i]), self.transform(self.data[i - 1])", False),
        ("return int(self.targets[i]), self.transform(self.data[i])", False),
        ("return tuple(self.transform(x) for x in (self.data[i], self.data[0]))", False),
        ("same = self.transform\nreturn same(self.data[i]), same(self.data[i - 1])", False),
        ("x = self.transform(self.data[i])\nreturn x, x.mean((1, 2))", False),
        ("x = self.transform(self.data[i])\ny = x.sum()\nreturn x, y", False),
        ("x = self.data[i]\nx = self.transform(x)\nreturn x, int(self.targets[i])", True),
        (
            "x = self.data[i]\nif self.transform is not None:\n    x = self.transform(x)\n"
            "return x, int(self.targets[i])",
            True,
        ),
        (
            "x = self.data[i]\nreturn self.transform(x) if self.transform else x, "
            "int(self.targets[i])",
            True,
        ),
    ],
)
def test_a_transform_is_taken_apart_where_it_makes_the_first_of_a_pair_alone(
    returned: str, is_first: bool
) -> None:
    lines = "\n".join(f"        {line}" for line in returned.splitlines())
    facts = scaled((RETURNED, lines))[1]
    assert (scaled_whole(facts, ("ToTensor", "Normalize")) is not None) is is_first
    assert (cached_before(facts, "Normalize") is not None) is is_first


def test_pictures_that_come_with_what_may_be_pictures_are_not_scaled_apart() -> None:
    _, facts = scaled()
    (loader,) = facts.loaders
    clean = msgspec.structs.replace(PICTURES, path="[1]")
    both = msgspec.structs.replace(loader, batch=(PICTURES, clean))
    assert scaled_whole(replace(facts, loaders=(both,)), ("ToTensor", "Normalize")) is None


BUILT = "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)  # train loader"


@pytest.mark.parametrize(
    "built",
    [
        f"for _ in range(2):\n    {BUILT}",
        f"def loaded():\n    {BUILT}\n    return train_loader\n\n\ntrain_loader = loaded()",
    ],
    ids=["in a loop", "in a function"],
)
def test_a_transform_is_not_taken_apart_twice(built: str) -> None:
    facts = scaled((BUILT, built))[1]
    assert scaled_whole(facts, ("ToTensor", "Normalize")) is None
    assert cached_before(facts, "Normalize") is None


def test_one_of_a_dataset_made_beside_its_loader_is() -> None:
    text = scaled()[0]
    start = text.index("train_set = Images(")
    lines = "".join(f"    {x}\n" if x else "\n" for x in text[start:].splitlines())
    facts = scaled((text[start:], f"def main():\n{lines}\n\nmain()\n"))[1]
    assert scaled_whole(facts, ("ToTensor", "Normalize")) is not None
    assert cached_before(facts, "Normalize") is not None


def test_what_a_trial_of_reused_buffers_measured_is_no_code_of_a_few_lines() -> None:
    facts = facts_of(scripts()[0])
    (row,) = rows_of(facts, Settings(reuse_buffers=True))
    assert not row.code
    assert "not what yours bring" in (row.idea or "")


def test_a_stream_is_not_indexed_on_the_device() -> None:
    resident = Settings(resident=True)
    for kind, written_in in (("map", True), ("iterable", False)):
        codes = [_packed(facts_of(x, loader={"kind": kind}), resident) for x in scripts()]
        assert any("class OnDevice" in code for code in codes) is written_in


@pytest.mark.parametrize("kind", ["list", "tuple", "Batch", ""])
def test_only_plain_lists_and_dicts_are_packed(kind: str) -> None:
    codes = [_packed(facts_of(path, loader={"batch_type": kind})) for path in scripts()]
    assert any("class Packing" in code for code in codes) is (kind == "list")


def test_what_the_script_collates_with_is_what_is_packed() -> None:
    for collate in ("default_collate", "default_convert"):
        changed = {"batch_type": "list", "collate": collate}
        codes = "".join(_packed(facts_of(path, loader=changed)) for path in scripts())
        assert f"Packing(torch.utils.data.{collate})" in codes


def test_files_of_a_folder_of_images_are_decoded_behind_the_loader() -> None:
    decode = Settings(device_decode=True)
    for dataset, written_in in (("ImageFolder", True), ("TensorDataset", False)):
        codes = [_packed(facts_of(x, loader={"dataset": dataset}), decode) for x in scripts()]
        assert any("class Decoded" in code for code in codes) is written_in
        for code in filter(None, codes):
            given = set(re.findall(r"Encoded\(([a-z][\w.]*)\)(?!:)", code))
            named = set(re.findall(r", ([\w.]+)\.transform, ", code)) - {"self"}
            assert named and named == given - {"torch.utils.data.Dataset"}
            assert "collate_fn=joined" in code


_PACKED = Settings(packed=True)


def _packed(facts: Facts, settings: Settings = _PACKED) -> str:
    """Where the loop moves all tensors of its batches."""
    moved = tuple(
        msgspec.structs.replace(transfer, path=tensor.path)
        for transfer in facts.transfers[:1]
        for loader in facts.loaders
        for tensor in loader.batch
    )
    (row,) = rows_of(replace(facts, transfers=moved), settings)
    return row.code
