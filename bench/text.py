"""Make text that compresses like an agent's transcript: common words, rare words, numbers and ids."""

from __future__ import annotations

import random
from itertools import accumulate

_ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
)
_NUCLEI = ("a", "ai", "e", "ea", "i", "o", "oo", "ou", "u", "y")
_CODAS = ("", "", "n", "r", "s", "t", "l", "nd", "ng", "ck", "m")
_RARE = 0.16  # the share of tokens that are numbers, ids or hashes: what keeps zstd near 3x


def _word(rng: random.Random) -> str:
    syllables = rng.choices((1, 2, 3), (3, 5, 2))[0]
    return "".join(rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS) for _ in range(syllables))


def _vocabulary(size: int) -> list[str]:
    rng = random.Random("vocabulary")
    return [_word(rng) for _ in range(size)]


_WORDS = _vocabulary(4000)
_ZIPF = list(accumulate(1 / (rank + 2.7) for rank in range(len(_WORDS))))


def hex_id(rng: random.Random, prefix: str, digits: int = 24) -> str:
    return f"{prefix}_{rng.getrandbits(digits * 4):0{digits}x}"


def _rare(rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return str(rng.randrange(100_000))
    if kind == 1:
        return f"{rng.uniform(0, 500):.2f}"
    if kind == 2:
        return f"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T{rng.randrange(24):02}:00"
    return hex_id(rng, "ref", 6)


def _token(rng: random.Random, word: str) -> str:
    return _rare(rng) if rng.random() < _RARE else word


def prose(rng: random.Random, chars: int) -> str:
    """Words with a sprinkle of numbers and ids, `chars` characters of it."""
    words = rng.choices(_WORDS, cum_weights=_ZIPF, k=chars // 4 + 1)
    return " ".join(_token(rng, word) for word in words)[:chars]


def records(rng: random.Random, chars: int) -> str:
    """Lines as a tool returns them, `chars` characters of them."""
    lines: list[str] = []
    length = 0
    while length < chars:
        note = prose(rng, 90)
        line = f'{{"id": "{hex_id(rng, "row", 8)}", "value": {rng.randrange(10_000)}, "note": "{note}"}}'
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:chars]
