"""The commands of label files: `inspect`, `import`, `convert`, `drop` and `rules`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from halflabel.cli import app, show
from halflabel.cli.options import (
    ExcelSafe,
    Force,
    LabelFile,
    LabelReader,
    argument,
    check_free,
    command,
    free_name,
    option,
    option_words,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, plain_table
from halflabel.errors import UserError
from halflabel.features import near_copies
from halflabel.fitting import advice as method_advice
from halflabel.fitting import assembly as assemblies
from halflabel.fitting.config import Config
from halflabel.images import decode
from halflabel.labels import drop as protocols
from halflabel.labels import formats, groups
from halflabel.labels import names as label_names
from halflabel.labels import rules as label_rules
from halflabel.labels import table as tables
from halflabel.labels.formats._csv import csv_line
from halflabel.labels.formats._into import add_to_table
from halflabel.report import labels_page
from halflabel.runs import crossfit
from halflabel.system.files import atomic_write, cache_folder
from halflabel.system.format import counted, group_digits, points
from halflabel.system.format import excel_safe as safe_name
from halflabel.system.reporter import Reporter


@command()
def inspect(
    labels: LabelFile,
    read: LabelReader,
    top: int | None = option(None, "Number of classes to show.", min=1, show_default="8"),
    details: bool = option(False, "Also show more classes, all suitable methods and what names mean.", "--details"),
    images: Path | None = option(
        None,
        "Also look in this folder for nearly identical photos, and at what class names alone are worth, by "
        "features that train uses again.",
    ),
    plot: Path | None = option(None, "Also write an HTML page with charts of the labels and of pairs of classes."),
) -> None:
    """Show how many labels are known, per class and per image, and recommend a method.

    Example: halflabel inspect labels.csv --minus-one absent --zero unknown
    """
    label_import = read(labels)
    table = label_import.table()
    stats = table.stats
    if plot is not None:
        labels_page.write_labels_page(table, plot)
    show.audit(label_import.audit, table)
    console.print()
    show.classes(stats, most=top or (30 if details else 8))
    show.advice(method_advice.advise(stats), all_methods=details)
    if (pattern := groups.suggest_groups(list(table.images))) is not None:
        console.print(
            f"\nImage names suggest groups (patients, cameras, bursts): if so, train with --group '{pattern}', or with "
            "a file of groups, so that scores are not judged by other images of the same group.",
            markup=False,
        )
    if images is not None:
        _show_photos(table, images, details)
    if plot is not None:
        show.written(plot)
    show.next_command(
        "train", labels, images or "PHOTOS", *option_words(read.given), "--out", free_name(Path("runs/first"))
    )


def _show_photos(table: tables.Table, images: Path, details: bool) -> None:
    """Warn of nearly identical photos, and print what class names say; features are cached where `train` looks."""
    with Bar("features") as bar:
        cache, reporter = cache_folder(Path("runs")), Reporter(bar, show.message)
        inputs = crossfit.open_inputs(Config(), table, images, cache, reporter)
    if (warning := near_copies.describe_near_copies(assemblies.pooled_features(inputs.features))) is not None:
        show.message(f"\n{warning}")
    alone = inputs.measure_names(table)
    if alone is None or inputs.likeness is None:
        return
    show.message(method_advice.describe_names(alone))
    if details:
        rows = plain_table("class", "most like", numbers=("AP",), left=1, right=1)
        for name, like, precision in method_advice.names_rows(alone, inputs.likeness):
            rows.add_row(escape(name), escape(like), points(precision))
        console.print(rows)


@command("import")
def import_labels(
    labels: LabelFile,
    out: Annotated[Path, argument("OUT", "The file to write: .csv, .parquet or .labels.")],
    read: LabelReader,
    images: Path | None = option(None, "Also check that each image has a file in this folder."),
    force: Force = False,
) -> None:
    """Convert labels of any format to halflabel's long format, and report how each raw value was read.

    Rows at the end that have only a class or only an image name it: nothing is known of it.

    Example: halflabel import instances_train.json labels.csv --unlisted absent
    """
    check_free(out, force)
    label_import = read(labels)
    table = label_import.table()
    if images is not None:
        decode.require_images(list(table.images), images)
    formats.write(label_import.rows, out)
    show.audit(label_import.audit, table)
    show.written(out, f": {counted(len(label_import.rows), 'row')}")
    show.next_command("inspect", out)


@command()
def convert(
    labels: LabelFile,
    out: Annotated[Path, argument("OUT", "The file or folder to write.")],
    read: LabelReader,
    to: str = option("auto", "The format to write; see above. auto: by the extension of OUT."),
    images: Path | None = option(None, "Write the names of the image files in this folder, with their endings."),
    into: Path | None = option(
        None,
        "Write a copy of this CSV or Excel table, of tags, with a column per class or a row per label, and add the "
        "labels that it lacks; all else stays.",
    ),
    image_url: str | None = option(None, "label-studio: the URL before the image paths."),
    without_sources: bool = option(False, "Lose sources and scores that the format cannot hold.", "--without-sources"),
    without_uncertain: bool = option(False, "Make uncertain labels unknown.", "--without-uncertain"),
    excel_safe: ExcelSafe = False,
    force: Force = False,
) -> None:
    """Convert labels from one format to another; what the format cannot hold is an error, never lost silently.

    Formats: binary (.labels: memory-mapped, for millions of images), long (all other extensions), wide, tags, coco,
    lvis, imagefolder, label-studio, fiftyone, and those of your own in HALFLABEL_PLUGINS. The formats of data sets,
    such as voc and cub, are only read.

    Example: halflabel convert labels.csv labels.json --to lvis
    """
    check_free(out, force)
    if into is not None and (to != "auto" or image_url is not None or excel_safe):
        raise UserError("--into keeps the form of the table", "leave out --to, --image-url and --excel-safe")
    to = formats.default_format(out) if to == "auto" else to
    label_import = read(labels)
    rows = label_import.rows
    if images is not None:
        names = [path.relative_to(images).as_posix() for path in decode.require_images(list(rows.images), images)]
        rows = replace(rows, images=label_names.Names(names))
    options: dict[str, Any] = {"without_sources": without_sources, "without_uncertain": without_uncertain}
    options |= {} if image_url is None else {"image_url": image_url}
    if excel_safe:
        if to not in ("long", "wide", "tags") or out.suffix == ".parquet":
            raise UserError(f"--excel-safe is for CSV files, not for {out.name} as {to}", "leave --excel-safe out")
        safe_images, safe_classes = (label_names.Names(map(safe_name, part)) for part in (rows.images, rows.classes))
        rows = replace(rows, images=safe_images, classes=safe_classes, sources=tuple(map(safe_name, rows.sources)))
    if into is not None:
        content = f": {'; '.join(add_to_table(rows, into, out, **options).lines())}"
    else:
        formats.write(rows, out, format=to, **options)
        content = f" as {to}"
    show.audit(label_import.audit, label_import.table())
    show.written(out, content)
    if to == "label-studio":
        config = escape(str(out.with_suffix(".config.xml")))
        console.print(f"First paste {config} into the labelling interface of the project, as code.")
    elif into is None:
        show.next_command("inspect", out)


@command()
def drop(
    labels: LabelFile,
    out: Annotated[Path, argument("OUT", "The file for the remaining labels: .csv, .parquet, .labels.")],
    protocol: Annotated[str, argument("PROTOCOL", "How to hide or corrupt labels; see above.")],
    read: LabelReader,
    seed: int = option(0, "Random seed. The same seed gives the same labels."),
    force: Force = False,
) -> None:
    """Hide or corrupt known labels by a protocol of the papers, to test methods on the remaining labels.

    Protocols, with their options: partial:share=0.1 keeps a tenth of each image's labels (also exact=false);
    dense:share=0.1 those of a tenth of the images; noisy:share=0.1 and corrupt:share=0.1 make a tenth wrong; noisy+;
    single-positive; positives:share=0.1 (also number=, keep_negatives=true); 1-positive+negatives;
    per-class:positives=20:negatives=20; semi-supervised:share=0.9 hides all labels of most images (also number=).

    Example: halflabel drop labels.csv tenth.csv partial:share=0.1
    """
    name, options = protocols.parse_protocol(protocol)
    check_free(out, force)
    label_import = read(labels)
    before = label_import.table()
    after = protocols.apply(name, before, seed=seed, **options)
    formats.write(label_import.rows.with_labels(after), out)
    show.audit(label_import.audit, before)
    show.paragraph(f"\n{str(protocols.PROTOCOLS[name].__doc__).splitlines()[0]} (seed {seed})")
    show.counts(after)
    show.written(out)
    show.next_command("inspect", out)


rules_app = typer.Typer(name="rules", help="Rules between labels, such as: a dog is an animal; day is not night.")
app.add_typer(rules_app)


@command("suggest", among=rules_app)
def suggest_rules(
    labels: LabelFile,
    read: LabelReader,
    out: Path | None = option(None, "Also write the rules to this file, to be edited."),
    top: int = option(10, "Number of rules to show and to write, the strongest first.", min=1),
    force: Force = False,
) -> None:
    """Suggest rules that the known labels support; no rule is applied unless a rules file lists it.

    Example: halflabel rules suggest labels.csv --out rules.csv
    """
    check_free(out, force)
    strongest = label_rules.suggest_rules(read(labels).table(), top=top)
    if not strongest:
        console.print("The known labels support no rule: that needs images with several, present and absent.")
        return
    rows = plain_table("class", "rule", "class", numbers=("holds", "of", "at least", "by chance"))
    for rule in strongest:
        numbers = map(group_digits, (rule.holds, rule.seen))
        shares = (f"{100 * share:.1f} %" for share in (rule.bound, rule.expected))
        rows.add_row(Text(rule.first), rule.kind, Text(rule.second), *numbers, *shares)
    console.print(rows)
    if out is None:
        words = option_words({"top": top, **read.given, "out": "rules.csv"})
        show.next_command("rules", "suggest", labels, *words, why="a file to edit")
        return
    with atomic_write(out) as temporary:
        lines = (csv_line((rule.first, rule.kind, rule.second)) for rule in strongest)
        temporary.write_text("".join(lines), encoding="utf-8")
    show.written(out, ". Remove rules that do not always hold.")
    show.next_command("fill", "RUN", "PHOTOS", "--rules", out)


@command("check", among=rules_app)
def check_rules(
    rules: Annotated[Path, argument("RULES", "CSV class,rule,class or a hierarchy (.json).")],
    labels: LabelFile,
    read: LabelReader,
) -> None:
    """Check how often the known labels contradict the rules.

    Example: halflabel rules check rules.csv labels.csv
    """
    table = read(labels).table()
    checked = label_rules.read_rules(rules, table.classes)
    implied = counted(checked.implied.nnz - len(table.classes), "implication")
    excluded = counted(checked.excluded.nnz // 2, "exclusion")
    console.print(f"{counted(checked.count, 'rule means', 'rules mean')} {implied} and {excluded}")
    if checked.ignored:
        classes = counted(checked.ignored, "class of the hierarchy is", "classes of the hierarchy are")
        console.print(f"{classes} not among the labels")
    count, examples = label_rules.find_contradictions(checked, table)
    shown = f": {'; '.join(examples)}" if examples else ""
    console.print(f"{counted(count, 'entry', 'entries')} where known labels break them{escape(shown)}")
    show.next_command("fill", "RUN", "PHOTOS", "--rules", rules)
