"""Cevikalp and others 2019: tables 1 to 4. Figure 3, on corrupted labels, has no numbers."""

from __future__ import annotations

from halflabel.papers.printed import table

__all__ = ["TABLES"]

_TOP_3 = ("P-C", "R-C", "F1-C", "P-O", "R-O", "F1-O", "mAP")

TABLES = (
    table(
        "S3-table1",
        "Average classification accuracies on the CIFAR-10 dataset",
        {
            "ILSVRC init.": """
                RML-CNN    | 89.24±0.3
                SS-RML-CNN | 91.46±0.2
                WARP       | 85.41±0.4
                Softmax    | 89.32±0.4""",
            "random init.": """
                RML-CNN    | 52.37±2.4
                SS-RML-CNN | 58.86±1.7
                WARP       | 50.52±0.5
                Softmax    | 51.46±1.1""",
            "other networks": """
                DGL            | 82.44±0.3
                Improved GAN   | 81.37±2.3
                ALI            | 82.01±1.6
                Ladder Network | 79.60±0.5""",
        },
        ("Accuracy",),
    ),
    table(
        "S3-table2",
        "Average classification accuracies on the STL-10 dataset",
        {
            "ILSVRC init.": """
                RML-CNN    | 91.11±0.3
                SS-RML-CNN | 94.1±0.2
                WARP       | 85.63±0.6
                Softmax    | 91.34±0.3""",
            "random init.": """
                RML-CNN    | 40.00±0.9
                SS-RML-CNN | 44.25±0.8
                WARP       | 39.15±0.7
                Softmax    | 39.27±1.7""",
            "other networks": """
                Haeusser et al. | 81.00
                Huang et al.    | 76.80±0.3""",
        },
        ("Accuracy",),
    ),
    table(
        "S3-table3",
        "Accuracies on the NUS-WIDE dataset on 81 classes for top-3 highest ranked labels",
        {
            "NUS-WIDE": """
                RML-CNN                       | 44.3 54.8 45.3 55.7 69.0 61.7 57.4
                WARP                          | 40.2 51.8 42.2 53.9 66.7 59.7 48.5
                Softmax                       | 31.7 31.2 31.4 47.8 59.5 53.0 –
                WARP [9]                      | 31.7 35.6 33.5 48.6 60.5 53.9 –
                CNN+RNN                       | 40.5 30.4 34.7 49.9 61.7 55.2 –
                RLSD                          | 44.4 49.6 46.9 54.4 67.6 60.3 54.1
                ResNet-107 (binary relevance) | 46.7 56.8 46.9 55.9 69.2 61.8 59.5
                ResNet-101 (binary relevance) | 46.4 55.3 47.0 55.9 69.2 61.8 60.1
                CNN+RMLC                      | 48.2 56.0 48.8 55.9 69.0 61.8 58.8"""
        },
        _TOP_3,
    ),
    table(
        "S3-table4",
        "Accuracies on the MS-COCO dataset on 80 classes for top-3 highest ranked labels",
        {
            "MS-COCO": """
                RML-CNN                       | 62.4 61.1 59.8 62.8 65.4 64.1 71.5
                WARP                          | 60.7 59.8 58.5 61.5 64.1 62.8 63.2
                WARP [9]                      | 59.3 52.5 55.7 59.8 61.4 60.7 –
                CNN+RNN                       | 66.0 55.6 60.4 69.2 66.4 67.8 –
                RLSD                          | 67.7 56.4 61.5 70.5 59.9 64.8 67.4
                ResNet-101 (binary relevance) | 65.3 62.6 61.3 64.1 66.8 65.4 75.2
                CNN+RMLC                      | 64.9 62.0 61.5 64.1 66.8 65.5 75.2"""
        },
        _TOP_3,
    ),
)
