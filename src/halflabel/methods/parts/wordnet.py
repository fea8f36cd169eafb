"""Nouns of WordNet, read from its own files `index.noun` and `data.noun`; no package is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from halflabel.errors import UserError

_PLURALS = (("men", "man"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"), ("ies", "y"), ("s", ""))
_HYPERNYMS = ("@", "@i")  # kind of, instance of


class WordNet:
    """The noun hierarchy of a folder with the files of WordNet 3, such as Debian's package wordnet-base installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parents: dict[int, tuple[int, ...]] = {}
        self._depths: dict[int, int] = {}

    @classmethod
    def find(cls) -> WordNet:
        """Open the WordNet of the system: $WNSEARCHDIR, /usr/share/wordnet, or the data folder of nltk."""
        places = ["/usr/share/wordnet", "/usr/local/share/wordnet", "~/nltk_data/corpora/wordnet"]
        for place in [os.environ.get("WNSEARCHDIR", ""), *places]:
            folder = Path(place).expanduser()
            if place and (folder / "index.noun").is_file() and (folder / "data.noun").is_file():
                return cls(folder)
        raise UserError(
            "WordNet is not installed",
            "apt install wordnet-base, or set WNSEARCHDIR to the folder of index.noun; or use ‹graph=cooccurrence›",
        )

    def meanings(self, names: Iterable[str]) -> list[int | None]:
        """Return the first noun meaning of each name, as a synset number; None for names that WordNet lacks."""
        return [next((self._index[form] for form in _forms(name) if form in self._index), None) for name in names]

    def similarity(self, first: int, second: int) -> float:
        """Return 2 · d / (d_1 + d_2) of Wu and Palmer 1994, from 0 to 1.

        d is the depth of the deepest common ancestor, counted in nodes from the root; d_1 and d_2 are d plus the steps
        from it down to each meaning.
        """
        steps_of_first, steps_of_second = self._ancestors(first), self._ancestors(second)
        common = steps_of_first.keys() & steps_of_second.keys()
        if not common:
            return 0.0
        depth, steps = max(
            (self._depth(synset), -steps_of_first[synset] - steps_of_second[synset]) for synset in common
        )
        return 2 * depth / (2 * depth - steps)

    @cached_property
    def _index(self) -> dict[str, int]:
        """The first meaning of each lemma."""
        index = {}
        with open(self.folder / "index.noun", encoding="utf-8") as file:
            for line in file:
                if not line.startswith(" "):  # the licence
                    fields = line.split()
                    index[fields[0]] = int(fields[-int(fields[2])])
        return index

    def _hypernyms(self, synset: int) -> tuple[int, ...]:
        if synset not in self._parents:
            with open(self.folder / "data.noun", "rb") as file:
                file.seek(synset)
                fields = file.readline().decode("utf-8").partition("|")[0].split()
            if not fields or int(fields[0]) != synset:
                raise UserError(f"{self.folder / 'data.noun'} does not fit its index", "install WordNet again")
            pointers = fields[4 + 2 * int(fields[3], 16) + 1 :]
            self._parents[synset] = tuple(
                int(number) for kind, number in zip(pointers[::4], pointers[1::4], strict=False) if kind in _HYPERNYMS
            )
        return self._parents[synset]

    def _ancestors(self, synset: int) -> dict[int, int]:
        """The fewest steps to each ancestor, the synset itself included."""
        steps, newest = {synset: 0}, [synset]
        while newest:
            reached = {parent: steps[each] + 1 for each in newest for parent in self._hypernyms(each)}
            newest = [parent for parent in reached if parent not in steps]
            steps |= {parent: reached[parent] for parent in newest}
        return steps

    def _depth(self, synset: int) -> int:
        """Nodes on the longest way to the root, both ends included."""
        if synset not in self._depths:
            self._depths[synset] = 1 + max((self._depth(parent) for parent in self._hypernyms(synset)), default=0)
        return self._depths[synset]


def _forms(name: str) -> list[str]:
    """The lemmas that a name may stand for: itself, and its singular."""
    lemma = "_".join(name.replace("_", " ").lower().split())
    return [lemma, *(lemma[: -len(end)] + singular for end, singular in _PLURALS if lemma.endswith(end))]
