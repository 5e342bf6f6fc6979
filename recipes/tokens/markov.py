"""Text without text: token sequences of very different lengths, drawn from a few Markov chains.

Everything is drawn with a fixed seed, so the data are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

PAD = 0
VOCABULARY = 2_000  # token ids 1…1999; 0 pads
N_CHAINS = 4
N_SUCCESSORS = 8
SHORTEST = 8
MEDIAN_LENGTH = 60

Sample = tuple[Sequence[int] | Tensor, int]


class Sequences(Dataset[Sample]):
    """Sample i: its token ids, a list as tokenizers return (or int64), and which chain wrote it.

    Lengths are log-normal: most sequences are short and a few are many times longer.
    """

    def __init__(self, n_sequences: int, *, max_length: int, as_tensors: bool = False) -> None:
        draw = np.random.default_rng(0)
        spread = np.exp(draw.normal(np.log(MEDIAN_LENGTH), 0.8, size=n_sequences))
        self.lengths = np.clip(spread.astype(int), min(SHORTEST, max_length), max_length).tolist()
        self.chains = draw.integers(N_CHAINS, size=n_sequences).tolist()
        walks = _walk(draw, np.array(self.chains), max_length)
        self.tokens: list[Sequence[int] | Tensor] = []
        for walk, length in zip(walks, self.lengths, strict=True):
            ids = walk[:length]
            self.tokens.append(torch.tensor(ids) if as_tensors else ids.tolist())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        return self.tokens[index], self.chains[index]


def _walk(draw: np.random.Generator, chains: np.ndarray, n_tokens: int) -> np.ndarray:
    """Token ids (n, n_tokens) int64, each row a walk along its own chain.

    A token has eight successors in a chain, frequent tokens more often among them (as in language,
    where the k-th most frequent word has a share of about 1/k), and each chain has favourites.
    """
    ids = np.arange(1, VOCABULARY)
    shares = 1 / ids
    successors = np.stack(
        [
            draw.permutation(ids)[
                draw.choice(len(ids), size=(VOCABULARY, N_SUCCESSORS), p=shares / shares.sum())
            ]
            for _ in range(N_CHAINS)
        ]
    )
    walks = np.empty((len(chains), n_tokens), dtype=np.int64)
    walks[:, 0] = draw.choice(ids, size=len(chains))
    for position in range(1, n_tokens):
        turns = draw.integers(N_SUCCESSORS, size=len(chains))
        walks[:, position] = successors[chains, walks[:, position - 1], turns]
    return walks


class LengthBuckets(Sampler[list[int]]):
    """Batches of sequences of about the same length, in random order, newly drawn each epoch.

    Shuffles all, sorts by length within pools of 50 batches, and shuffles the batches of a pool.
    """

    POOL = 50

    def __init__(self, lengths: Sequence[int], batch_size: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.lengths)).tolist()
        pool_size = self.POOL * self.batch_size
        for first in range(0, len(order), pool_size):
            pool = sorted(order[first : first + pool_size], key=self.lengths.__getitem__)
            batches = [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
            for which in torch.randperm(len(batches)).tolist():
                yield batches[which]
