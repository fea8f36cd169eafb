"""The commands `next` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from halflabel.cli import show
from halflabel.cli.options import ImageFolder, RunArgument, argument, check_image_folder, command, option
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import fill_words
from halflabel.cli.show import console
from halflabel.errors import UserError
from halflabel.filling import run as fill_run
from halflabel.questions import choose, next
from halflabel.report import comparison_page, layout, run_facts, run_page
from halflabel.runs import folder as run_folder
from halflabel.system.files import refuse_remote
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter


@command()
def report(
    run: Annotated[Path, argument("RUN", "The output folder of `train`, `compare` or `study`.")],
    images: Annotated[Path | None, option("The image folder: adds galleries of labels to check.")] = None,
    out: Annotated[Path | None, option("The HTML file to write (default: RUN/report.html).")] = None,
    maps: Annotated[
        bool, option("Colour where the model sees the class in each photo; takes longer.", "--maps")
    ] = False,
) -> None:
    """Write an HTML report of a run: the known labels, the training, the evaluation and labels to check.

    For a comparison, the report shows the evaluation, the best method for each share of labels, and the costs; for a
    study, how to spend labels or what more labels would give, with confidence intervals. The page needs no network and
    contains no folder names of this machine. With --images it contains small copies of some images.

    Example: halflabel report runs/first --images photos/

    Example: halflabel report runs/compare
    """
    if out is not None:
        layout.check_page_path(out)
    is_comparison = run_facts.is_comparison(run) and not (run / "config.yaml").exists()
    if is_comparison:
        if images is not None:
            raise UserError("the page of a comparison or study shows no images", "leave --images out")
        page = layout.write_page(out or run / "report.html", lambda: comparison_page.build_comparison(run))
    else:
        refuse_remote(run)
        opened = run_folder.RunFolder.open(run)
        check_image_folder(images)
        with Bar("scores") as bar:
            page = run_page.write_report(opened, out, images=images, maps=maps, reporter=Reporter(bar))
    show.written(page.path, f" ({page.size / 1000:.0f} kB)")
    if is_comparison:
        return
    if images is None:
        show.next_command("report", run, "--images", "PHOTOS", why="galleries of likely missing and wrong labels")
    elif fill_run.has_only_positives(opened):  # `fill` asks the questions that it needs first
        show.next_command(*fill_words(run, images), why="missing labels")
    else:
        show.next_command("next", run, images, why="the questions that help the model most")


@command("next")
def next_command(
    run: RunArgument,
    images: ImageFolder,
    count: Annotated[int, option("Number of questions.", min=1)] = 200,
    out: Annotated[Path, option("The CSV file of questions to write.")] = Path("questions.csv"),
    wrong: Annotated[
        bool, option("Ask about known labels that look wrong instead of unknown labels.", "--wrong")
    ] = False,
    disagree: Annotated[
        Path | None,
        option(
            "Ask where this run differs most from another run or from a CSV file image,class,probability.",
            metavar="RUN|FILE",
        ),
    ] = None,
    control: Annotated[
        float, option("Share of questions drawn at random, for unbiased estimates.", min=0, max=1)
    ] = 0.1,
    per_image: Annotated[int, option("Largest number of questions about one image.", min=1)] = 2,
) -> None:
    """Choose the labels to ask a person for next: those that are likely to improve the model most.

    Likely missing labels come first, rare classes before common ones, without near-duplicates; a random share gives
    unbiased estimates. Entries that were answered in `halflabel review` are left out.

    Example: halflabel next runs/first photos/ --count 500
    """
    refuse_remote(run)
    opened = run_folder.RunFolder.open(run)
    choose.refuse_other_content(out)
    if wrong and disagree is not None:
        raise UserError("--wrong and --disagree ask different questions", "give one of them")
    with Bar("scores") as bar:
        how = {"wrong": wrong, "disagree": disagree, "control": control, "per_image": per_image}
        chosen = next.next_questions(opened, images, count, **how, reporter=Reporter(bar))  # type: ignore[arg-type]
    if wrong and chosen.crossfitted:
        console.print("Each label was scored by a head that was trained without it")
    elif wrong:
        console.print(
            f"{counted(chosen.held_out, 'held-out image is', 'held-out images are')} scored without bias; the others "
            "by a model that has seen their labels and rarely contradicts them: the column `why` says which"
        )
    questions = chosen.questions
    choose.write_questions(questions, chosen.table, out)
    choose.record_questions(questions, chosen.table, opened.asked)
    if not questions:
        nothing = "No label looks wrong" if wrong else "Nothing is unknown: there is nothing to ask"
        console.print("They differ nowhere" if disagree is not None else nothing)
        return
    classes = len({item.column for item in questions})
    content = f"{counted(len(questions), 'question')} on {counted(classes, 'class', 'classes')}"
    content += f", {sum(item.is_control for item in questions)} of them drawn at random"
    show.written(out, f": {content}")
    show.next_command("review", run, images, "--questions", out)
