"""Choose the questions that a person should answer next, for `halflabel next`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from halflabel.labels.answers import answered_entries
from halflabel.labels.table import Table
from halflabel.questions.choose import Question, choose_questions
from halflabel.questions.disagreement import largest_differences, other_scores
from halflabel.questions.doubtful_labels import doubtful_labels
from halflabel.runs.folder import RunFolder
from halflabel.runs.scores import scored_images
from halflabel.system.reporter import SILENT, Reporter


class NextQuestions(NamedTuple):
    """Questions about entries of `table`, the labels of the run that people made."""

    questions: list[Question]
    table: Table
    held_out: int  # images the model was not trained on
    crossfitted: bool  # whether doubtful labels were scored by heads that were trained without them


def next_questions(
    run: RunFolder | str | Path,
    images: str | Path,
    count: int = 200,
    *,
    wrong: bool = False,
    disagree: str | Path | None = None,
    control: float = 0.1,
    per_image: int = 2,
    folds: int = 3,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> NextQuestions:
    """Return the unknown entries most worth asking about, or with `wrong` the known labels that look wrong.

    With `disagree`, another run or a file of probabilities, the unknown entries where both differ most.
    Entries answered in `halflabel review` are left out. Labels made by a model do not count as known. `control` and
    `seed` are for unknown entries; `folds` is for labels that look wrong, which are scored by heads that were trained
    without them (0: scored by the model itself).
    """
    run = run if isinstance(run, RunFolder) else RunFolder.open(run)
    images = Path(images)
    scored = scored_images(run, images, reporter)
    table, held_out = scored.table, int(scored.held_out.sum())
    skip = answered_entries(run.answers, table)
    if disagree is not None:
        other = other_scores(Path(disagree), scored, reporter)
        questions = largest_differences(scored.scores, other, table, count, per_image=per_image, skip=skip)
        return NextQuestions(questions, table, held_out, crossfitted=False)
    if not wrong:
        questions = choose_questions(
            scored.scores,
            table,
            scored.thresholds,
            count,
            features=scored.features,
            control=control,
            per_image=per_image,
            skip=skip,
            seed=seed,
        )
        return NextQuestions(questions, table, held_out, crossfitted=False)
    scores, crossfitted = scored.scores, run.score_kind == "out-of-fold"
    if not crossfitted and folds >= 2 and run.read_config().get("tune", "head") == "head":  # else as long as training
        from halflabel.runs.crossfit import fit_again

        fitted = fit_again(run, images, run.read_labels(), folds=folds, reporter=reporter)
        scores, crossfitted = fitted.probabilities(run.read_calibration()), True
    kind: dict[str, Any] = {"score_kind": "cross-fitted score"} if crossfitted else {"trained_on": ~scored.held_out}
    questions = doubtful_labels(scores, table, count, per_image=per_image, skip=skip, **kind)
    return NextQuestions(questions, table, held_out, crossfitted)
