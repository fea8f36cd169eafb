"""Questions where two models differ: two runs, or a run and a teacher's file."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from command_line import done, refused

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.questions.next import largest_differences, other_scores, read_other_file


def test_the_largest_differences_come_first() -> None:
    draw = np.random.default_rng(0)
    p, q = draw.random((2, 30, 4))
    labels = np.where(draw.random((30, 4)) < 0.3, 1, 0)
    table = Table.from_dense(labels, [f"i{k:02}" for k in range(30)], list("abcd"))
    q[3] = np.nan
    skip = [(0, 0), (1, 1)]
    questions = largest_differences(p, q, table, 20, per_image=1, skip=skip)
    size = np.where((labels == 0) & ~np.isnan(q), np.abs(p - q), -1)
    for entry in skip:
        size[entry] = -1
    assert [(item.image, item.column) for item in questions[:1]] == [np.unravel_index(size.argmax(), size.shape)]
    expected = sorted(size.max(1), reverse=True)[:20]
    assert [abs(p[item.image, item.column] - q[item.image, item.column]) for item in questions] == expected
    assert questions[0].why.endswith(f"{q[questions[0].image, questions[0].column]:.2f}")
    assert largest_differences(p, p, table, 20) == []


def test_a_run_with_other_images_and_classes_is_aligned(project, tmp_path) -> None:
    scored = project.scored()
    assert np.array_equal(other_scores(project.run.folder, scored), scored.scores)
    few = scored.table.subset(np.arange(0, 80, 2))
    from dataclasses import replace

    part = replace(scored, table=few, scores=scored.scores[::2], paths=scored.paths[::2])
    assert np.array_equal(other_scores(project.run.folder, part), scored.scores[::2])


def test_next_asks_where_a_teacher_differs(project, tmp_path) -> None:
    scored = project.scored()
    teacher = tmp_path / "teacher.csv"
    with open(teacher, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "class", "probability", "present"))
        writer.writerow((scored.paths[5], "3", 0.999, 1))
        writer.writerow((scored.table.images[6], "4", 0.001, 0))
        writer.writerow(("elsewhere.png", "4", 0.5, 0))
        writer.writerow((scored.table.images[7], "", "", ""))  # an image that could not be read
    out = tmp_path / "q.csv"
    done("next", project.run.folder, project.images, "--disagree", teacher, "--out", out)
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["image"], row["class"]) for row in rows} <= {
        (scored.table.images[5], "3"),
        (scored.table.images[6], "4"),
    }
    assert rows
    assert "differ nowhere" in done(
        "next", project.run.folder, project.images, "--disagree", project.run.folder, "--out", out
    )
    both = ("next", project.run.folder, project.images, "--wrong", "--disagree", teacher, "--out", out)
    assert "give one of them" in refused(*both)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("image,class\na,b\n", "no column 'probability'"),
        ("image,class,probability\n{image},3,1.5\n", "probability '1.5' is too large"),
        ("image,class,probability\n{image},3,much\n", "probability 'much' is not a number"),
        ("image,class,probability\nx,y,0.5\n", "no probability for an image"),
    ],
)
def test_a_teacher_file_that_cannot_be_used_is_refused(project, tmp_path, content, says) -> None:
    table = project.scored().table
    path = tmp_path / "t.csv"
    path.write_text(content.format(image=table.images[0]))
    with pytest.raises(UserError, match=says):
        read_other_file(path, table, [None] * len(table))
    with pytest.raises(UserError, match="no such file"):
        read_other_file(tmp_path / "none.csv", table, [None] * len(table))
