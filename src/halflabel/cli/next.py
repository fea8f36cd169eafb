"""The command `next`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from halflabel.cli import app
from halflabel.cli.options import RunArgument
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import after_next
from halflabel.cli.terminal import console, show_command, show_written
from halflabel.errors import UserError
from halflabel.questions import choose, next
from halflabel.runs import folder as run_folder
from halflabel.system.files import refuse_remote
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter


@app.command("next")
def next_command(
    run: RunArgument,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="The folder with the image files.")],
    count: Annotated[int, typer.Option(help="Number of questions.", min=1)] = 200,
    out: Annotated[Path, typer.Option(help="The CSV file of questions to write.")] = Path("questions.csv"),
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Ask about known labels that look wrong instead of unknown labels.")
    ] = False,
    disagree: Annotated[
        Path | None,
        typer.Option(
            help="Ask where this run differs most from another run or from a CSV file image,class,probability.",
            metavar="RUN|FILE",
        ),
    ] = None,
    control: Annotated[
        float, typer.Option(help="Share of questions drawn at random, for unbiased estimates.", min=0, max=1)
    ] = 0.1,
    per_image: Annotated[int, typer.Option(help="Largest number of questions about one image.", min=1)] = 2,
    folds: Annotated[
        int,
        typer.Option(
            help="With --wrong: folds of cross-fitting, which scores each label by a head trained without it; 0: none.",
            min=0,
        ),
    ] = 3,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
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
        chosen = next.next_questions(
            opened,
            images,
            count,
            wrong=wrong,
            disagree=disagree,
            control=control,
            per_image=per_image,
            folds=folds,
            seed=seed,
            reporter=Reporter(bar),
        )
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
    kinds = Counter(
        "control" if item.is_control else item.why.partition(",")[0].partition(";")[0] for item in questions
    )
    summary = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    classes = len({item.column for item in questions})
    content = f"{counted(len(questions), 'question')} on {counted(classes, 'class', 'classes')} ({summary})"
    show_written(out, f": {content}")
    show_command(after_next(run, images, out))
