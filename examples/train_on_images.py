"""Train on image files: cached features of a frozen, pretrained network, and a head trained in seconds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from halflabel import HalfLabelClassifier
from halflabel.cli.demo import write_data
from halflabel.labels import drop


def main(images: int = 400, backbone: str = "efficientnet-lite0") -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_data(folder, most=images)  # the photos of `halflabel demo`, with all their labels
        truth, test = data.truth, data.test
        files = [data.photos / name for name in truth.images]
        test_files = [data.photos / name for name in test.images]
        print(f"{len(files)} images to train on, {len(test_files)} to test on; test mAP:")

        for text, table in (("all labels known", truth), ("30 % of them", drop.partial(truth, 0.3, seed=0))):
            classifier = HalfLabelClassifier("bn-bce", backbone=backbone, size=96, cache=folder / "features")
            classifier.fit(files, table)
            print(f"  {text}: {classifier.score(test_files, test):.3f}")

        scores = classifier.predict_proba(test_files[:1])[0]
        present = [name for name, value in zip(test.classes, test.rows([0])[0], strict=True) if value > 0]
        print(f"\n{test_files[0].name} shows {', '.join(present)}; the likeliest classes:")
        for c in scores.argsort()[::-1][:3]:
            print(f"  {classifier.classes_[c]}: {scores[c]:.2f}")


if __name__ == "__main__":
    main()
