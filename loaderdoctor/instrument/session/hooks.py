"""The places in torch where we listen; thin wrappers that call the loop.

    DataLoader.__init__                       where a loader was built
    DataLoader.__iter__                       creation of an iterator, and how long it takes
    _BaseDataLoaderIter.__init__, __next__    which loader an iterator belongs to; fetching
    _MultiProcessingDataLoaderIter._shutdown_workers   teardown
    optimizer step (post hook), torch.autograd.backward  training work
    torch.save, safetensors' save_file        saving, which is no part of a step

Installed once, removed without a trace unless another tool has wrapped them since: then they
stay and only pass through. A fork switches them off (`Session.disable_in_fork`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from time import perf_counter_ns
from types import ModuleType
from typing import Any, ClassVar

from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.feed import FEED, Feed, Torch, bypassed
from loaderdoctor.instrument.session.loop import Loop

_DATALOADER = "torch.utils.data.dataloader"
_OPTIMIZER = "torch.optim.optimizer"
_AUTOGRAD = "torch.autograd"
_TORCH = "torch"
_SAFETENSORS = "safetensors.torch"
_HELD_BEFORE = (
    "loaderdoctor: this loader was tuned in an earlier recording, and its passes stay as they were "
    "set there: this one can't see them. Build a new loader to have it recorded.\n"
)


class Hooks:
    """Our wrappers and what they replaced."""

    active: ClassVar[Hooks | None] = None  # those installed in this process
    _left: ClassVar[list[Hooks]] = []  # what stays for loaders that were handed over; no session's

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = Loop(session)
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, original, ours
        self._handle: Any = None
        self._torchs_backward: Any = None
        self._watch = ImportWatch(
            {
                _AUTOGRAD: self._hook_autograd,
                _OPTIMIZER: self._hook_optimizer,
                _DATALOADER: self._hook_dataloader,
                _TORCH: self._hook_torch,
                _SAFETENSORS: self._hook_safetensors,
            }
        )
        self._saving = threading.local()  # one way to save may use another
        self._said_held = False
        session.hooks = self

    def watch(self) -> None:
        """Install each hook as soon as the script has imported what it hooks."""
        for left in reversed(Hooks._left):
            if not left._session.holds_loaders:
                left.remove()
        Hooks.active = self
        self._watch.install()

    def remove(self, *, but_epochs: bool = False) -> None:
        """Give torch its own functions back; with `but_epochs` all except iterating."""
        self._watch.remove()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        keep = ("__iter__", "__next__") if but_epochs else ()
        for entry in [e for e in reversed(self._replaced) if e[1] not in keep]:
            self._restore(entry)
        if Hooks.active is self:
            Hooks.active = None
        if self in Hooks._left:
            Hooks._left.remove(self)
        if self._replaced:
            Hooks._left.append(self)

    def hear_backward(self) -> None:
        """Put the backward hook back, where it was taken out and nobody else's is in its place."""
        module = sys.modules[_AUTOGRAD]
        if module.__dict__["backward"] is self._torchs_backward:
            self._hook_autograd(module)

    def remove_backward(self) -> None:
        """Take only the backward hook out: the step is known and needs it no more."""
        for entry in [e for e in self._replaced if e[1] == "backward"]:
            self._restore(entry)

    def _restore(self, entry: tuple[Any, str, Any, Any]) -> None:
        owner, name, original, ours = entry
        if owner.__dict__.get(name) is ours:
            setattr(owner, name, original)
        self._replaced.remove(entry)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        ours = functools.wraps(original)(wrap(original))
        setattr(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    # ------------------------------------------------------------ after import

    def _hook_dataloader(self, module: ModuleType) -> None:
        session = self._session
        base = module._BaseDataLoaderIter
        loader_class = module.DataLoader
        session.originals = Torch(loader_class.__dict__["__iter__"], base.__dict__["__next__"])
        self._replace(loader_class, "__init__", self._wrap_loader_init)
        self._replace(loader_class, "__iter__", self._wrap_iter)
        self._replace(base, "__init__", self._wrap_iterator_init)
        self._replace(base, "__next__", self._wrap_next)
        self._replace(
            module._MultiProcessingDataLoaderIter, "_shutdown_workers", self._wrap_shutdown
        )

    def _hook_optimizer(self, module: ModuleType) -> None:
        session, worked = self._session, self._loop.worked

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if session.live and session.window.hears_work:
                worked(optimizer)

        self._handle = module.register_optimizer_step_post_hook(stepped)

    def _hook_autograd(self, module: ModuleType) -> None:
        self._torchs_backward = module.__dict__["backward"]
        self._replace(module, "backward", self._wrap_backward)

    def _hook_torch(self, module: ModuleType) -> None:
        # One function under both names: it is pickled by its own name.
        self._replace(sys.modules["torch.serialization"], "save", self._wrap_save)
        *_, ours = self._replaced[-1]
        self._replaced.append((module, "save", module.__dict__["save"], ours))
        setattr(module, "save", ours)  # noqa: B010 - a module's name, unknown to its type

    def _hook_safetensors(self, module: ModuleType) -> None:
        for name in {"save_file", "save_model"} & module.__dict__.keys():  # 0.3.0 has one of them
            self._replace(module, name, self._wrap_save)

    def _say_if_held(self, loader: Any) -> None:
        """Once, of a loader that an earlier session of this process hands its batches for good."""
        if self._said_held or not any(
            left._session.registry.taken_over(loader) for left in Hooks._left
        ):
            return
        self._said_held = True
        with suppress(Exception):  # a notebook's or a closed stream: the loop goes on
            sys.stderr.write(_HELD_BEFORE)

    # ------------------------------------------------------------ wrappers

    def _wrap_loader_init(self, original: Any) -> Any:
        session, built = self._session, self._loop.built

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if not session.live or bypassed():
                original(self, *args, **kwargs)
                return
            built(self)
            original(self, *args, **kwargs)
            session.registry.complete(self)

        return __init__

    def _wrap_iter(self, original: Any) -> Any:
        session, open_iterator = self._session, self._loop.open_iterator
        say_if_held = self._say_if_held

        def __iter__(self: Any) -> Any:  # noqa: N807
            if not bypassed() and (session.live or session.registry.taken_over(self)):
                if session.live:
                    say_if_held(self)
                return open_iterator(self, original)
            iterator = original(self)
            if not session.live:
                # A persistent iterator begins another epoch: what we knew was of the last one.
                getattr(iterator, "__dict__", {}).pop(FEED, None)
            return iterator

        return __iter__

    def _wrap_iterator_init(self, original: Any) -> Any:
        session = self._session

        def __init__(self: Any, loader: Any) -> None:  # noqa: N807
            original(self, loader)
            if session.live and not bypassed():
                state = session.registry.state_of(loader)
                self.__dict__[FEED] = Feed(state, spare=session.registry.spare(loader))

        return __init__

    def _wrap_next(self, original: Any) -> Any:
        session, fetch = self._session, self._loop.fetch

        def __next__(self: Any) -> Any:  # noqa: N807
            feed = self.__dict__.get(FEED)
            if feed is None:
                return original(self)
            quick = feed.quick
            if quick is not None:
                return quick(feed, self)
            if session.live or feed.tainted or feed.handed is not None:
                return fetch(feed, self)
            return original(self)

        return __next__

    def _wrap_shutdown(self, original: Any) -> Any:
        session, shut_down = self._session, self._loop.shut_down

        def _shutdown_workers(self: Any) -> None:
            feed = self.__dict__.get(FEED)
            if feed is None or not session.live or self.__dict__.get("_shutdown", True):
                original(self)
                return
            shut_down(feed, self, original)

        return _shutdown_workers

    def _wrap_backward(self, original: Any) -> Any:
        session, worked = self._session, self._loop.worked

        def backward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if session.live:
                worked(None)
            return result

        return backward

    def _wrap_save(self, original: Any) -> Any:
        session, saved, here = self._session, self._loop.saved, self._saving

        def save(*args: Any, **kwargs: Any) -> Any:
            if not session.live or getattr(here, "on", False):
                return original(*args, **kwargs)
            start, here.on = perf_counter_ns(), True
            try:
                return original(*args, **kwargs)
            finally:
                here.on = False
                if session.live:
                    saved(start)

        return save


# Calls us right after a module was imported, whoever imports it and whenever.
#
# Importing torch ourselves before the script would freeze what the script sets first (environment
# variables read by OpenMP and CUDA at import), so hooks follow the script's own import instead.

AfterImport = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and wraps `exec_module` once."""

    def __init__(self, wanted: Mapping[str, AfterImport]) -> None:
        self._wanted = dict(wanted)

    def install(self) -> None:
        """Watch from now on; modules already imported are reported at once."""
        for name in [n for n in self._wanted if n in sys.modules]:
            self._wanted.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import system: the spec of a wanted module, with its loader wrapped."""
        if fullname not in self._wanted:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._wrap(fullname, spec)
                return spec
        return None

    def _wrap(self, fullname: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader belongs to this one module: give it back its own method first.
            del loader.exec_module
            original(module)
            callback = self._wanted.pop(fullname, None)
            if callback is not None:
                callback(module)
            if not self._wanted:
                self.remove()

        loader.exec_module = exec_module  # type: ignore[method-assign]
