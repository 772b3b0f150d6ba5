"""Small random data on the disk, in the files that programs would otherwise download or prepare first."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np


def words(folder: Path) -> None:
    """Texts of some hundred words, for programs that count the words of a corpus."""
    random = np.random.default_rng(0)
    corpus = folder / "data" / "wikitext-2"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", 8000), ("valid", 400), ("test", 400)):
        drawn = random.integers(0, 2000, (lines, 25))
        text = "\n".join(" ".join(f"w{each}" for each in line) for line in drawn)
        (corpus / f"{name}.txt").write_text(text + "\n")


def characters(folder: Path) -> None:
    """Numbers of characters, as nanoGPT prepares a text of Shakespeare."""
    random = np.random.default_rng(0)
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    for name, size in (("train", 200_000), ("val", 20_000)):
        random.integers(0, 65, size, dtype=np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def stories(folder: Path) -> None:
    """Shards of tokens from 512 words, as llama2.c prepares them."""
    random = np.random.default_rng(0)
    data = folder / "data" / "tok512"
    data.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        random.integers(0, 512, 100_000, dtype=np.uint16).tofile(data / f"data{number:02}.bin")


def citations(folder: Path) -> None:
    """A graph of papers that cite each other, of the size of Cora."""
    random = np.random.default_rng(0)
    data = folder / "cora"
    data.mkdir(parents=True, exist_ok=True)
    papers, features = 2708, 1433
    content = []
    for paper in range(papers):
        row = np.zeros(features, dtype=np.int64)
        row[random.integers(0, features, 18)] = 1
        content.append(f"{paper} {' '.join(map(str, row))} class{random.integers(7)}")
    (data / "cora.content").write_text("\n".join(content) + "\n")
    pairs = {(int(a), int(b)) for a, b in random.integers(0, papers, (5429, 2)) if a != b}
    (data / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in sorted(pairs)))
