"""The training script of an audited loop, as text; and its variants that are timed for the truth.

The script is what a user would write, with delays of known size in place of real work. A variant
leaves something out and prints one line of JSON, the time of a step between two marks, then ends:

    plain     nothing is left out
    ready     batches lie ready in host memory, made before; new shapes stay new
    resident  batches lie ready on the device
    inside    as well, nothing is done outside the steps (validation, saving, between epochs)
    bare      as well, the loop does no work of its own
"""

from __future__ import annotations

from dataclasses import dataclass

from audit_loops import LONG_EPOCH, AuditLoop

VARIANTS = ("plain", "ready", "resident", "inside", "bare")
LEAST_STEPS = 24  # that a variant is timed for: of a slow one, seconds are few
READY_SHAPES = 700  # batches made before for loops whose shapes are new: a run is shorter

_HEAD = '''"""{about}"""
import functools
import io
import itertools
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("{device}")


def wait(ms):
    time.sleep(ms / 1e3)


def burn(ms):
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        pass

'''

_DATA = """
class Samples(Dataset):
    cost_ms = {sample_ms}

    def __len__(self):
        return {n_samples}

    def __getitem__(self, i):
        if self.cost_ms:
            {cost}(self.cost_ms)
        return torch.full((64,), float(i % 7)), i % 10


class HeldOut(Dataset):
    def __len__(self):
        return {n_held_out}

    def __getitem__(self, i):
        wait({held_out_ms})
        return torch.full((64,), float(i % 5)), i % 10


def collate(samples):
    x = torch.stack([one for one, _ in samples])
    y = torch.tensor([label for _, label in samples])
    return x, y

"""

_SAVING = """
class SlowDisk(io.BytesIO):
    def write(self, data):
        if not self.tell():
            wait({saving_ms})
        return super().write(data)

"""

# Each batch is longer than the one before by a column, which the network leaves unread.
_NEW_SHAPES = """
class Lengths(Samples):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x, y, i // {batch} % 3001


def collate(samples):
    x = torch.stack([one for one, _, _ in samples])
    y = torch.tensor([label for _, label, _ in samples])
    return nn.functional.pad(x, (0, samples[0][2])), y

"""

# A large batch costs its copy, not its making: it lies in memory that workers share.
_LARGE = """
KEPT = torch.ones({batch}, {width}).share_memory_()


def collate(samples):
    return KEPT, torch.tensor([label for _, label in samples])

"""

_PLAN = """
@functools.lru_cache(None)
def plan(shape):
    {work}({plan_ms})
    return 1.0

"""

_PRODUCTS = """
def products(ms):
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        torch.mm(LEFT, RIGHT, out=PRODUCT)


LEFT, RIGHT, PRODUCT = torch.ones(192, 192), torch.ones(192, 192), torch.ones(192, 192)

"""

_SLEEPING = """
class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {forward}
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        {backward}
        return gradient

"""

_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, {width})
        self.middle = nn.Linear({width}, {width})
        self.last = nn.Linear({width}, 10)

    def forward(self, x):
        h = self.first(x[:, :64]).repeat({rows}, 1)
        for _ in range({repeats}):
            h = torch.tanh(self.middle(h)){extra}
        return self.last(h[: x.shape[0]])

"""

_CLOCK = '''
class Clock:
    """Prints the mean time of a step between two marks and ends the run."""

    def __init__(self):
        self.first = None

    def mark(self, step):
        now = time.perf_counter()
        if self.first is None and step >= {warmup}:
            synchronize()
            self.first = step, time.perf_counter()
            return
        n = step - self.first[0] if self.first else 0
        if step >= {most} or n >= {least} and now - self.first[1] >= {seconds}:
            synchronize()
            ms = (time.perf_counter() - self.first[1]) * 1e3 / n
            print('{{"step_ms": %.4f, "n_steps": %d}}' % (ms, n), flush=True)
            raise SystemExit


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()

'''

_READY = '''
class Ready:
    """Batches made before; the first epoch's, in their order."""

    def __init__(self, loader, device):
        cost, Samples.cost_ms = Samples.cost_ms, 0.0
        making = DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)
        self.batches = list(itertools.islice(making, {n_ready}))
        Samples.cost_ms = cost
        if loader.pin_memory and DEVICE.type == "cuda":
            self.batches = [[t.pin_memory() for t in batch] for batch in self.batches]
        self.batches = [[t.to(device) for t in batch] for batch in self.batches]
        self.n, self.at = len(loader), 0

    def __iter__(self):
        for _ in range(self.n):
            self.at += 1
            yield self.batches[self.at % len(self.batches)]

'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a unit of computing takes on this machine."""

    cpu_ms: float  # of one repetition of the network, forward and backward
    gpu_ms: float | None = None  # likewise
    cycles_per_ms: float | None = None  # of torch.cuda._sleep


# Width and rows of the network's layers. On a GPU each runs for far longer than its launch takes
# (10 to 20 µs where launching is slow): computing is the device's, not the host's.
SIZES = {"cpu": (256, 128), "cuda": (1024, 8192)}


def variants_of(loop: AuditLoop) -> tuple[str, ...]:
    """Those that differ for this loop; the others would repeat their neighbour."""
    left = {"plain", "ready"}
    left |= {"resident"} if loop.device == "cuda" else set()
    left |= {"inside"} if loop.outside else set()
    left |= {"bare"} if loop.within_host_ms else set()
    return tuple(name for name in VARIANTS if name in left)


def script_of(
    loop: AuditLoop,
    calibration: Calibration,
    *,
    variant: str | None = None,
    seconds: float = 1.5,
    lasts_s: float | None = None,
) -> str:
    """The script; a variant that times itself for `seconds`; or one that ends after `lasts_s`."""
    burns = "burn" if loop.burns else "wait"
    parts = [_HEAD.format(about=f"Loop {loop.name} of an audit.", device=loop.device)]
    parts.append(
        _DATA.format(
            sample_ms=round(loop.batch_ms / loop.batch, 4),
            n_samples=loop.batch * loop.epoch_steps,
            cost=burns,
            n_held_out=loop.batch * max(1, loop.validation_batches),
            held_out_ms=round(loop.validation_batch_ms / loop.batch, 4),
        )
    )
    if loop.shapes != "fixed":
        parts.append(_NEW_SHAPES.format(batch=loop.batch))
    if loop.megabytes:
        width = loop.megabytes * 250_000 // loop.batch
        parts.append(_LARGE.format(batch=loop.batch, width=width))
    if loop.shapes == "plan":
        parts.append(_PLAN.format(work="burn" if loop.host_burns else "wait", plan_ms=loop.plan_ms))
    if loop.saving_ms:
        parts.append(_SAVING.format(saving_ms=loop.saving_ms))
    parts.append(_net(loop, calibration))
    if variant is not None:
        pinned_or_large = 8 if loop.megabytes else 64
        n_ready = pinned_or_large if loop.shapes == "fixed" else READY_SHAPES
        warmup = -(-max(8, 6 * loop.workers) // loop.period) * loop.period
        parts.append(
            _CLOCK.format(warmup=warmup, seconds=seconds, least=LEAST_STEPS, most=READY_SHAPES)
        )
        parts.append(_READY.format(n_ready=n_ready))
    parts.append("\n".join(_main(loop, variant, lasts_s)))
    return "".join(parts)


def _net(loop: AuditLoop, calibration: Calibration) -> str:
    width, rows = SIZES[loop.device]
    rows = max(1, rows // loop.batch)
    if loop.sleeping_kernel or loop.timed_products:
        forward, backward = (_sleep(loop, calibration, part) for part in (1 / 3, 2 / 3))
        sleeping = _SLEEPING.format(forward=forward, backward=backward)
        sleeping = _PRODUCTS * loop.timed_products + sleeping
        # The width of one repetition, however long it sleeps.
        net = _NET.format(width=64, rows=1, repeats=1, extra="\n            h = Kernel.apply(h)")
        return sleeping + _with_plan(loop, net)
    unit = calibration.cpu_ms if loop.device == "cpu" else calibration.gpu_ms
    if unit is None:
        raise ValueError(f"{loop.name} needs a GPU")
    repeats = max(1, round(loop.compute_ms / unit))
    return _with_plan(loop, _NET.format(width=width, rows=rows, repeats=repeats, extra=""))


def _sleep(loop: AuditLoop, calibration: Calibration, part: float) -> str:
    ms = loop.compute_ms * part
    if loop.device == "cpu":
        return f"{'products' if loop.timed_products else 'wait'}({ms:.3f})"
    if calibration.cycles_per_ms is None:
        raise ValueError(f"{loop.name} needs a GPU")
    return f"torch.cuda._sleep({int(ms * calibration.cycles_per_ms)})"


def _with_plan(loop: AuditLoop, net: str) -> str:
    if loop.shapes != "plan":
        return net
    return net.replace("x[:, :64])", "x[:, :64] * plan(tuple(x.shape)))")


def _main(loop: AuditLoop, variant: str | None, lasts_s: float | None) -> list[str]:
    """Lines of `main()` and of its call."""
    rank = VARIANTS.index(variant) if variant is not None else 0
    host = loop.host_ms if rank < VARIANTS.index("bare") else {}
    outside = rank < VARIANTS.index("inside")
    names = ["loader", "second", "third"][: loop.n_loaders]
    lines = ["", "def main():", "    torch.manual_seed(0)"]
    dataset = "Samples" if loop.shapes == "fixed" else "Lengths"
    settings = [f"batch_size={loop.batch}", "collate_fn=collate", f"num_workers={loop.workers}"]
    settings += ["shuffle=True"] * (loop.shapes == "fixed")
    settings += ["persistent_workers=True"] * (loop.persistent and loop.workers > 0)
    settings += ["pin_memory=True"] * loop.pinned
    lines += [f"    {name} = DataLoader({dataset}(), {', '.join(settings)})" for name in names]
    if rank:
        where = "DEVICE" if rank >= VARIANTS.index("resident") else '"cpu"'
        lines += [f"    {name} = Ready({name}, {where})" for name in names]
    if loop.validates_every and outside:
        lines.append(f"    held_out = DataLoader(HeldOut(), batch_size={loop.batch})")
    lines += [
        "    net = Net().to(DEVICE)",
        "    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)",
        "    step = 0",
    ]
    lines += ["    clock = Clock()"] * (variant is not None)
    lines += [f"    ends = time.monotonic() + {lasts_s}"] * (lasts_s is not None)
    skipped = loop.skipped_batches if variant is None else 2
    if loop.skips == "statistics":
        lines += [
            "    total = 0.0",
            f"    for x, _ in itertools.islice(loader, {skipped}):",
            "        total += x.mean().item()",
            f'    print("mean", total / {skipped}, flush=True)',
        ]
    feed = "loader" if loop.n_loaders == 1 else f"zip({', '.join(names)})"
    take = "x, y" if loop.n_loaders == 1 else ", ".join(f"({a}, y)" for a in "xuv"[: len(names)])
    copied = ", non_blocking=True" if loop.pinned else ""
    more = [f"            x = x + {a}.to(DEVICE{copied})" for a in "uv"[: loop.n_loaders - 1]]

    def work(place: str, margin: int) -> list[str]:
        name = "burn" if loop.host_burns else "wait"
        return [f"{' ' * margin}{name}({host[place]})"] if place in host else []

    lines += ["    for epoch in range(1_000_000):"]
    lines += [f"        for i, ({take}) in enumerate({feed}):"]
    if loop.skips == "resume":
        lines += [f"            if epoch == 0 and i < {skipped}:", "                continue"]
    lines += [
        *work("fetch_to", 12),
        f"            x = x.to(DEVICE{copied})",
        f"            y = y.to(DEVICE{copied})",
        *more,
        *work("to_forward", 12),
        "            loss = nn.functional.cross_entropy(net(x), y)",
        *work("forward_backward", 12),
        "            optimizer.zero_grad()",
        "            loss.backward()",
        "            optimizer.step()",
        *work("after_step", 12),
        "            step += 1",
    ]
    if loop.validates_every and outside:
        lines += [
            f"            if step % {loop.validates_every} == 0:",
            "                with torch.no_grad():",
            "                    for v, _ in held_out:",
            "                        net(v.to(DEVICE))",
        ]
        saving = "                torch.save(net.state_dict(), SlowDisk())"
        lines += [saving] * bool(loop.saving_ms)
    if lasts_s is not None:
        lines += ["            if time.monotonic() > ends:", "                return"]
    whole_epochs = loop.epoch_steps < LONG_EPOCH
    if variant is not None and not whole_epochs:
        lines += [
            f"            if step % {loop.period} == 0:",
            "                clock.mark(step)",
        ]
    if outside:
        lines += work("between_epochs", 8)
    if variant is not None and whole_epochs:
        lines.append("        clock.mark(step)")
    lines += ["", "", 'if __name__ == "__main__":', "    main()", ""]
    return lines
