"""Read a label file, show how its values were read, hide some labels, and count what is left."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from halflabel import Policy, UserError, read_labels, write_labels
from halflabel.labels import drop

# A wide table as annotation tools export it: 1 present, 0 absent, blank unknown; "maybe" must be stated.
TABLE = """\
image,cat,dog,grass
1.jpg,1,0,1
2.jpg,,1,maybe
3.jpg,0,,1
4.jpg,1,1,0
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tags.csv"
        file.write_text(TABLE)

        try:
            read_labels(file)
        except UserError as error:  # nothing is guessed: the error names the place and the option to add
            print(str(error).replace(folder, "…"))

        result = read_labels(file, Policy(values={"maybe": "unknown"}))
        print(f"\nread as {result.audit.format!r}:")
        for raw, meaning, entries in result.audit.value_counts:
            print(f"  {raw:6} -> {meaning:8} {entries} entries")

        table = result.table()
        for name, labels in (
            ("as read", table),
            ("half of each image", drop.partial(table, 0.5, seed=0)),
            ("one positive per image", drop.single_positive(table, seed=0)),
        ):
            stats = labels.stats
            print(f"\n{name}: {labels}, {stats.regime}, {100 * stats.share_known:.0f} % known")
            for image, row in zip(labels.images, labels.dense().tolist(), strict=True):
                print(f"  {image}", *(f"{value:+d}" if value else " ?" for value in row))

        write_labels(drop.single_positive(table, seed=0), Path(folder) / "single.csv")
        print(f"\nhalflabel's own form:\n{(Path(folder) / 'single.csv').read_text()}")


if __name__ == "__main__":
    main()
