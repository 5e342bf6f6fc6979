"""Formats that datasets convert for each sample: how each is recognised, and what to do instead.

A stack sample is judged by the innermost Python function it fell on, where that is a library's;
where it is the user's own line (or torch's or the standard library's, called from it), by the
line's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loaderdoctor.facts.workers import Leaf, LineHotspot
from loaderdoctor.instrument.wire.records import LoaderRecord, StoreRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of conversion."""

    name: str  # as in the finding's evidence
    leaf: str  # pattern of "file:function" of a library
    code: str  # pattern of a line of the user's
    stores: tuple[str, ...]  # kinds of StoreRecord it starts from
    what: str  # "…% of making a batch is <what>"
    instead: str  # the advice, a sentence


FORMATS: tuple[Format, ...] = (
    Format(
        name="text",
        leaf=r"/(json/(decoder|__init__)|ast|csv|_strptime|tokenize)\.py:|/numpy/lib/_npyio_impl\.py:",
        code=r"\bjson\.loads?\(|literal_eval\(|\.split\(\s*(\)|['\"])|csv\.(reader|DictReader)|fromstring\("
        r"|strptime\(|loadtxt\(|genfromtxt\(|(orjson|ujson)\.loads\(|\bre\.\w+\(",
        stores=("list",),
        what="parsing text for each sample",
        instead="Parse once, ahead of training, and store the numbers as an array.",
    ),
    Format(
        name="pandas-rows",
        leaf=r"/pandas/",
        code=r"\.(iloc|loc|iat|at)\[|\.(iterrows|itertuples)\(",
        stores=("frame",),
        what="taking single rows out of a pandas frame, each of which becomes a Series first",
        instead="Make one array of the columns ahead of training and index that.",
    ),
    Format(
        name="h5py",
        leaf=r"/h5py/",
        code=r"h5py\.File\(",
        stores=("h5py",),
        what="reading samples one at a time through h5py, whose every access parses a selection",
        instead="Read a batch's rows in one access, or the whole array once where it fits.",
    ),
    Format(
        name="arrow",
        leaf=r"-packages/(datasets|pyarrow)/",
        code=r"\.(to_pylist|as_py|to_pandas|to_pydict)\(",
        stores=("arrow",),
        what="turning Arrow values into Python objects and these into tensors",
        instead="Take the columns as arrays once, ahead of training, and index those.",
    ),
    Format(
        name="pil-round-trip",
        leaf=r"/PIL/Image\.py:|/torchvision/transforms/.*"
        r":.*(to_tensor|pil_to_tensor|to_pil_image|to_image|ToTensor|PILToTensor|ToPILImage|ToImage)",
        code=r"\bfromarray\(|ToTensor\(\)|\bto_tensor\(|pil_to_tensor\(|to_pil_image\(",
        stores=("array", "tensor"),
        what="a round trip of each sample through PIL: an array becomes an image, and that a "
        "tensor again",
        instead="Index the array for a whole batch and normalise that, without PIL between.",
    ),
    Format(
        name="python-lists",
        leaf=r"$^",
        code=r"torch\.(tensor|as_tensor|FloatTensor|LongTensor|IntTensor|DoubleTensor)\("
        r"|\b(np|numpy)\.(array|asarray|stack)\(|\.tolist\(",
        stores=("list",),
        what="making arrays of Python lists, value by value",
        instead="Make one array of all of them ahead of training and index that.",
    ),
)
# What makes of an array a PIL image: without it, ToTensor is the end of decoding, no round trip.
_TO_PIL = re.compile(r"\bfromarray|to_pil_image|ToPILImage|frombuffer|frombytes")
# Whose values come as Python lists.
_MAKE_LISTS = tuple(f for f in FORMATS if f.name in ("text", "arrow"))
_OTHER_PACKAGE = re.compile(r"-packages/(?!(torch|numpy)/)")
MIN_IMAGE_DIMENSIONS = 3  # samples, height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Converting:
    """One format and the stack samples that fell on it; the lines carry those only."""

    format: Format
    hotspots: tuple[LineHotspot, ...]  # costliest first
    store: StoreRecord | None  # what it starts from, where known

    @property
    def share(self) -> float:
        """Of making a batch."""
        return sum(x.share for x in self.hotspots)


def conversion(lines: Iterable[LineHotspot], loader: LoaderRecord | None) -> Converting | None:
    """The format that takes most; None where no line converts.

    Python lists that come out of another format (JSON, Arrow) are a part of that conversion.
    """
    hotspots = tuple(lines)
    found = {f.name: c for f in FORMATS if (c := _converting(f, hotspots, loader)) is not None}
    lists = found.get("python-lists")
    made_by = [c for form in _MAKE_LISTS if (c := found.get(form.name)) is not None]
    if lists is not None and made_by:
        source = max(made_by, key=lambda c: c.share)
        both = tuple(sorted((*source.hotspots, *lists.hotspots), key=lambda x: -x.share))
        found[source.format.name] = replace(source, hotspots=both)
    elif lists is not None:
        # Samples seldom fall within such a library (it keeps the interpreter), the store tells it.
        for form in _MAKE_LISTS:
            store = next((s for s in (loader.stores if loader else ()) if _holds(form, s)), None)
            if store is not None:
                found[form.name] = Converting(format=form, hotspots=lists.hotspots, store=store)
                del found[lists.format.name]
                break
    return max(found.values(), key=lambda c: c.share, default=None)


def _holds(form: Format, store: StoreRecord) -> bool:
    """Whether a store can only hold that format: of a list, text alone is known."""
    return store.kind in form.stores and (store.kind != "list" or store.entry == "str")


def _converting(
    form: Format, lines: tuple[LineHotspot, ...], loader: LoaderRecord | None
) -> Converting | None:
    counts = [(hotspot, _samples_of(form, hotspot)) for hotspot in lines]
    hotspots = [replace(hotspot, n_stack_samples=n) for hotspot, n in counts if n]
    stores = loader.stores if loader is not None else ()
    store = next((s for s in stores if s.kind in form.stores), None)
    if form.name == "pil-round-trip":
        store = next((s for s in stores if _is_images(s)), None)
        if store is None and not any(_makes_pil(hotspot) for hotspot in hotspots):
            return None
    if not hotspots:
        return None
    hotspots.sort(key=lambda x: -x.share)
    return Converting(format=form, hotspots=tuple(hotspots), store=store)


def _samples_of(form: Format, hotspot: LineHotspot) -> int:
    """How many of a line's stack samples fell on this format."""
    if not hotspot.leaves:  # not recorded: the line itself is all there is
        return hotspot.n_stack_samples if _format_of(hotspot, None) is form else 0
    return sum(leaf.n_stack_samples for leaf in hotspot.leaves if _format_of(hotspot, leaf) is form)


def _format_of(hotspot: LineHotspot, leaf: Leaf | None) -> Format | None:
    """The one format a stack sample counts for: the library's it was in, else the line's own."""
    places = [f"{leaf.file}:{leaf.function}"] if leaf is not None else []
    for place in (*places, f"{hotspot.file}:{hotspot.function}"):
        path = place.replace("\\", "/")
        for form in FORMATS:
            if re.search(form.leaf, path):
                return form
        if _OTHER_PACKAGE.search(path) and path.rpartition(":")[0] != hotspot.file.replace(
            "\\", "/"
        ):
            return None  # in a library that converts nothing: decoding, normalising
    code = hotspot.code or ""
    return next((form for form in FORMATS if re.search(form.code, code)), None)


def _makes_pil(hotspot: LineHotspot) -> bool:
    return any(
        _TO_PIL.search(x) for x in (hotspot.code or "", *(leaf.function for leaf in hotspot.leaves))
    )


def _is_images(store: StoreRecord) -> bool:
    return store.kind in ("array", "tensor") and len(store.shape) >= MIN_IMAGE_DIMENSIONS
