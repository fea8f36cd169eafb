"""Learning from the scores of another model, against the slow loop."""

import numpy as np
import pytest
import step_checks as checks
import torch
from scipy.special import expit

from halflabel.errors import UserError
from halflabel.evaluation.calibration import fit_platt
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.taught import class_trust
from halflabel.types import Batch

slow = checks.reference("taught")


def write(path, table, scores):
    lines = ["image,class,probability,present"]
    lines += [
        f"{image},{name},{scores[i, c]},1"
        for i, image in enumerate(table.images)
        for c, name in enumerate(table.classes)
        if not np.isnan(scores[i, c])
    ]
    path.write_text("\n".join(lines) + "\nunread.jpg,,,\n")
    return str(path)


def example(seed=0, negatives=True):
    """A table, a truth that half of it shows, and a teacher that is right more often than not."""
    rng = np.random.default_rng(seed)
    truth = np.where(rng.random((60, 4)) < 0.4, 1, -1)
    labels = truth * (rng.random(truth.shape) < 0.5)
    if not negatives:
        labels = np.maximum(labels, 0)
    scores = np.round(expit(1.5 * truth + rng.normal(size=truth.shape)), 3)
    scores[rng.random(scores.shape) < 0.1] = np.nan
    return Table.from_dense(labels), truth, scores


@pytest.mark.parametrize("negatives", [True, False])
def test_targets_are_those_of_the_slow_loop(tmp_path, negatives):
    table, _, scores = example(negatives=negatives)
    labels = table.dense()
    method = recipe("taught").make(teacher=write(tmp_path / "scores.csv", table, scores), trust=0.6, smoothing=0.2)
    method.start(table)
    known = np.where(np.isnan(scores), 0, labels)
    trust = slow.trust(
        [[t for t in column if not np.isnan(t)] for column in scores.T],
        [
            [label for t, label in zip(*pair, strict=True) if not np.isnan(t)]
            for pair in zip(scores.T, labels.T, strict=True)
        ],
        -1 if negatives else 0,
    )
    trust = [0.6 * share for share in trust]
    np.testing.assert_allclose(method.relabel.trust, trust, rtol=1e-5)
    assert min(trust) > 0.2
    batch = Batch(torch.arange(60), (torch.zeros(60, 4),), torch.from_numpy(labels))
    targets = method.relabel(batch, torch.zeros(60, 4), 1)
    if not negatives:
        assert bool((targets.neg[batch.labels == 0] > 0).all())
        return
    calibration = fit_platt(torch.logit(torch.from_numpy(scores)), torch.from_numpy(known))
    for i, row in enumerate(labels):
        for c, label in enumerate(row):
            t = None if np.isnan(scores[i, c]) else scores[i, c]
            expected = slow.targets(label, t, trust[c], calibration.slope, calibration.offset, 0.2, ignores=True)
            assert (float(targets.pos[i, c]), float(targets.neg[i, c])) == pytest.approx(expected, abs=1e-5)


def test_a_teacher_that_knows_nothing_is_not_trusted():
    table, _, scores = example()
    shuffled = np.random.default_rng(1).permutation(np.nan_to_num(scores, nan=0.5))
    labels = table.dense()
    assert class_trust(shuffled, labels, against_unknown=False).max() < 0.3
    assert class_trust(1 - np.nan_to_num(scores, nan=0.5), labels, against_unknown=False).max() == 0


def test_without_a_teacher_it_is_bce_or_n_ls():
    for negatives, plain in ((True, recipe("bce").make()), (False, recipe("n-ls").make())):
        table, *_ = example(negatives=negatives)
        logits = torch.randn(60, 4, dtype=torch.float64)
        method = checks.begin(recipe("taught").make(), table.dense())
        checks.same(
            checks.step(method, logits, table.dense(), 1),
            checks.step(checks.begin(plain, table.dense()), logits, table.dense(), 1),
            1e-6,
        )
    assert recipe("taught").make().is_linear_loss


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("image,class,score\na,b,0.5\n", "line 1: there is no column 'probability'"),
        ("image,class,probability\n0,0,0.5\n0,1,high\n", "line 3.*'high' is not a number"),
        ("image,class,probability\n0,0,1.5\n", "line 2.*'1.5' is too large"),
        ("image,class,probability\n", "no rows"),
        ("image,class,probability\nx.jpg,dog,0.5\n", "no image and class of the training labels"),
    ],
)
def test_bad_score_files_are_refused(tmp_path, content, problem):
    table, *_ = example()
    (tmp_path / "scores.csv").write_text(content)
    with pytest.raises(UserError, match=problem):
        recipe("taught").make(teacher=str(tmp_path / "scores.csv")).start(table)
    with pytest.raises(UserError, match="is not a file"):
        recipe("taught").make(teacher=str(tmp_path / "gone.csv")).start(table)
