"""Where making a batch spends its time: the hottest line, the slowest transform, conversions.

Of formats that datasets convert for each sample: how each is recognised, and what to do instead. A
stack sample is judged by the innermost Python function it fell on, where that is a library's; where
it is the user's own line (or torch's or the standard library's, called from it), by its text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loaderdoctor import format as fmt
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import Leaf, LineHotspot
from loaderdoctor.findings import EvidenceValue
from loaderdoctor.instrument.wire.records import LoaderRecord, StoreRecord

# A line with less of the stack samples is not where the time goes; naming it would mislead. It is
# the lower end of the share's 95 % interval that must reach this.
MIN_NAMED_SHARE = 0.25
# The fewest stack samples at which a line that has half of them is surely above that: 9 of 18 are
# at least 26 %, 8 of 16 only 24.6 % (Clopper-Pearson). Fewer name no line, whatever they say: they
# come in bursts and when the interpreter lets go, which no binomial interval knows of.
MIN_STACK_SAMPLES = 18
# A library is said in place of the function that calls it where it has this much of its time.
LIBRARY_PART = 0.8

_INSTALLED = re.compile(r"-packages/(?P<name>\w+)[/.]")
PHASES = {"fetch": "fetching", "collate": "collating", "sampler": "the sampler"}


def seen_enough(hotspots: Iterable[LineHotspot]) -> bool:
    """Whether these lines of one run surely are a quarter of making a batch, seen often enough."""
    return least_share(hotspots) >= MIN_NAMED_SHARE


def least_share(hotspots: Iterable[LineHotspot]) -> float:
    """Of making a batch, by the lower ends of 95 % intervals; 0 of a phase seen too seldom."""
    return sum(
        share * binomial_interval(n, of)[0]
        for share, n, of in _by_phase(hotspots)
        if of >= MIN_STACK_SAMPLES
    )


def most_share(hotspots: Iterable[LineHotspot]) -> float:
    """Of making a batch, the most that these lines may take: the upper end of 95 % intervals."""
    return min(1.0, sum(x * binomial_interval(n, of)[1] for x, n, of in _by_phase(hotspots)))


def _by_phase(hotspots: Iterable[LineHotspot]) -> Iterable[tuple[float, int, int]]:
    """Of each phase its share, and how many of its stack samples fell on these lines."""
    counts: dict[str, tuple[float, int, int]] = {}
    for x in hotspots:
        n, of = counts.get(x.phase, (0.0, 0, 0))[1], x.of_stack_samples
        counts[x.phase] = x.phase_share, min(n + x.n_stack_samples, of), of
    return counts.values()


def hottest(facts: Facts, phase: str | None = None) -> LineHotspot | None:
    """The line that takes most (of one phase), where enough was seen to name one."""
    lines = facts.workers.lines if facts.workers is not None else ()
    counted = (x for x in lines if phase in (None, x.phase))
    hotspot = max(counted, key=lambda x: x.share, default=None)
    return hotspot if hotspot is not None and seen_enough((hotspot,)) else None


def where(hotspot: LineHotspot) -> str:
    """A line of code as text: `data.py:41 (__getitem__)`; a package's own with the package's name.

    Else torchvision's mnist.py would pass for the user's own. A recipe is the user's, wherever it
    lies.
    """
    path = hotspot.file.replace("\\", "/")
    name = path.rsplit("/", 1)[-1]
    if "/loaderdoctor/_recipes/" not in path:
        for place in ("/site-packages/", "/dist-packages/"):
            if place in path:
                name = path.rsplit(place, 1)[-1]
    return f"{name}:{hotspot.line} ({hotspot.function})"


def at(hotspot: LineHotspot) -> str:
    """`, at data.py:41 (__getitem__)`; empty where that line was seen too seldom to be named."""
    return f", at {where(hotspot)}" if seen_enough((hotspot,)) else ""


def line_evidence(hotspot: LineHotspot | None) -> dict[str, EvidenceValue]:
    """One hotspot with its stack samples; empty where there is none, or where too few saw it."""
    if hotspot is None or not seen_enough((hotspot,)):
        return {}
    return {
        "line": where(hotspot),
        "line_code": hotspot.code,
        "line_share": hotspot.share,
        "line_looks": hotspot.n_stack_samples,
        "looks": hotspot.of_stack_samples,
    }


def hot_evidence(facts: Facts) -> dict[str, EvidenceValue]:
    """The hottest line and the slowest transform of the dataset, as far as recorded."""
    workers = facts.workers
    if workers is None:
        return {}
    evidence = line_evidence(hottest(facts))
    if workers.transforms:
        name, ms_per_sample = max(workers.transforms, key=lambda x: x[1])
        evidence |= {
            "slowest_transform": name,
            "slowest_transform_ms_per_sample": ms_per_sample,
        }
    return evidence


def hot_sentence(facts: Facts) -> str:
    """The hottest line as a sentence after a space; empty where none was seen often enough."""
    hotspot = hottest(facts)
    if hotspot is not None:
        return f" Hottest line: {where(hotspot)}, {seen(hotspot)} of making a batch."
    spread = spread_words(facts.workers.lines) if facts.workers is not None else None
    return f" Most of it: {spread}." if spread is not None else ""


def spread_words(lines: Sequence[LineHotspot]) -> str | None:
    """What lines have in common of which none was seen often enough to be named alone.

    `data.py (Rows.__getitem__), 79 % (19 of 24 stack samples of fetching)`, or pandas, in the place
    of a function. None where one line is named, or no sum is seen enough either.
    """
    if any(seen_enough((line,)) for line in lines):
        return None
    functions: defaultdict[str, list[LineHotspot]] = defaultdict(list)
    libraries: defaultdict[str, list[LineHotspot]] = defaultdict(list)
    for line in lines:
        path = line.file.replace("\\", "/").rpartition("/")[2]
        functions[f"{path} ({line.function})"].append(line)
        for leaf in line.leaves:
            if (package := _package(leaf)) is not None:
                part = replace(line, n_stack_samples=leaf.n_stack_samples, leaves=())
                libraries[package].append(part)
    function, library = (_largest(sums) for sums in (functions, libraries))
    if library is not None and _share(library) >= LIBRARY_PART * _share(function):
        function, library = library, function
    for one in (function, library):
        if one is not None and seen_enough(one[1]):
            return f"{one[0]}, {seen(*one[1])}"
    return None


_Sum = tuple[str, list[LineHotspot]]


def _largest(sums: Mapping[str, list[LineHotspot]]) -> _Sum | None:
    return max(sums.items(), key=_share, default=None)


def _share(one: _Sum | None) -> float:
    return sum(line.share for line in one[1]) if one is not None else 0.0


def _package(leaf: Leaf) -> str | None:
    """The installed package whose function it is, torch's own left out."""
    found = _INSTALLED.search(leaf.file.replace("\\", "/"))
    return None if found is None or found["name"] == "torch" else found["name"]


def seen(*hotspots: LineHotspot) -> str:
    """A share with the stack samples behind it: `79 % (19 of 24 stack samples of fetching)`.

    Of the lines in the phase that has most of it.
    """
    phase = max(hotspots, key=lambda x: x.share).phase
    counted = [x for x in hotspots if x.phase == phase]
    n, of = sum(x.n_stack_samples for x in counted), counted[0].of_stack_samples
    share = fmt.share(sum(x.share for x in hotspots))
    return f"{share} ({n} of {of} stack samples of {PHASES[phase]})"


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
