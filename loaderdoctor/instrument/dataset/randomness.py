"""What of a dataset's own code draws at random: samples that come out differently each time.

Read off the bytecode: making samples to compare them would move the generators that the user's
own samples are drawn from. A trial of `cache` compares some, once batches are not the loop's own.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from itertools import islice

_DRAWS = frozenset({
    "random", "rand", "randn", "randint", "randrange", "rand_like", "randn_like", "randint_like",
    "randperm", "random_sample", "standard_normal", "uniform", "normal", "gauss", "integers",
    "choice", "choices", "shuffle", "permutation", "permuted", "bernoulli", "bernoulli_",
    "multinomial", "normal_", "uniform_", "random_", "poisson", "beta", "binomial",
})  # fmt: skip
# The modules and generators whose functions they are: `choice` alone may be anyone's.
_GENERATORS = ("random", "rng", "torch", "generator", "rand", "gen")
# A function that seeds its generator, by the sample's number for one, draws the same again.
_SEEDS = frozenset({"manual_seed", "seed", "default_rng", "RandomState", "Random", "Philox"})
# What only builds the dataset, or is no sample.
_BUILDS = frozenset({"__init__", "__new__", "__post_init__", "__len__", "__setstate__", "__repr__"})
_TORCH_DATA = ("torch.utils.data", "torch.nn", "builtins", "typing", "abc")
_CALLABLE = (types.FunctionType, staticmethod, classmethod)
MAX_DEPTH = 4
MAX_ITEMS = 16
MAX_NAMED = 3


def randomness_of_dataset(dataset: object) -> tuple[str, ...]:
    """Functions of the dataset's code that draw at random: `Photos.augment`. A few at most."""
    found: dict[str, None] = {}
    for function in _functions(dataset, 0, set()):
        if _draws(function.__code__):
            found[function.__qualname__.replace("<locals>.", "")] = None
    return tuple(found)[:MAX_NAMED]


def _draws(code: types.CodeType) -> bool:
    names = set(code.co_names) | set(code.co_varnames) | set(code.co_freevars)
    if names & _SEEDS or not names & _DRAWS:
        return False
    return any(word in name.lower() for name in names for word in _GENERATORS)


def _functions(value: object, depth: int, seen: set[int]) -> Iterator[types.FunctionType]:
    """Functions that a sample may come from: of the dataset's class, and of what it holds."""
    if depth > MAX_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    bound = isinstance(value, (types.MethodType, staticmethod, classmethod))
    function = value.__func__ if bound else value  # type: ignore[attr-defined]  # just asked
    if isinstance(function, types.FunctionType):
        yield from _with_helpers(function, seen)
    elif isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item in list(islice(items, MAX_ITEMS)):  # it may hold a million
            yield from _functions(item, depth + 1, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        for kind in type(value).__mro__:
            if not kind.__module__.startswith(_TORCH_DATA):
                for name, member in list(vars(kind).items()):
                    if name not in _BUILDS and isinstance(member, _CALLABLE):
                        yield from _functions(member, depth, seen)
        for item in list(vars(value).values()):
            yield from _functions(item, depth + 1, seen)


def _with_helpers(function: types.FunctionType, seen: set[int]) -> Iterator[types.FunctionType]:
    """The function, and those of the same module that it names."""
    yield function
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if (
            isinstance(helper, types.FunctionType)
            and helper.__globals__ is function.__globals__
            and id(helper) not in seen
        ):
            seen.add(id(helper))
            yield from _with_helpers(helper, seen)
