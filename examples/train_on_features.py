"""Train on an array of features and a label array with NaN for unknown labels, like any scikit-learn model."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from halflabel import HalfLabelClassifier


def main(images: int = 1000, epochs: int = 20) -> None:
    X, truth = make_multilabel_classification(images, n_features=30, n_classes=6, n_labels=2, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, truth.astype(float), random_state=0)
    random = np.random.default_rng(0)
    print(f"{len(X_train)} rows to train on, {len(X_test)} to test on, {y_train.shape[1]} classes; test mAP:")

    for share in (1.0, 0.3, 0.1):
        # Hidden labels become NaN, so 0 can only mean absent. Without any NaN that must be stated.
        known = np.where(random.random(y_train.shape) < share, y_train, np.nan)
        classifier = HalfLabelClassifier("bn-bce", fit_by="batches", epochs=epochs, lr=0.01, zero="absent")
        pipeline = make_pipeline(StandardScaler(), classifier).fit(X_train, known)
        print(f"  {100 * np.mean(~np.isnan(known)):5.1f} % of the labels known: {pipeline.score(X_test, y_test):.3f}")

    print("\nthe first test row, probability per class and what it is:")
    scores = pipeline.predict_proba(X_test[:1])[0]
    for number, (score, value) in enumerate(zip(scores, y_test[0], strict=True)):
        print(f"  class {number}: {score:.2f} {'present' if value else 'absent'}")


if __name__ == "__main__":
    main()
