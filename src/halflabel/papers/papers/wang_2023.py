"""Wang and others 2023: tables 1 to 4. Figures 3 and 4 have no numbers."""

from __future__ import annotations

from halflabel.papers.printed import table

__all__ = ["TABLES"]

TABLES = (
    table(
        "S4-table1",
        "The average mAP, OF1 and CF1 over 10 % to 90 % known labels",
        {
            ("MS-COCO", "VG-200", "Pascal VOC 2007"): """
                SSGRL   | 74.1 73.9 68.1 39.7 37.8 26.1 89.5 87.7 84.5
                GCN-ML  | 74.4 73.1 68.4 39.3 38.7 25.6 88.9 87.3 84.6
                PLCL    | 75.5 74.9 70.2 44.1 45.8 39.3 92.4 88.3 86.0
                SPLC    | 74.9 68.1 66.6 45.1 43.9 41.1 90.4 83.2 81.6
                SST     | 76.7 75.8 71.2 41.8 39.9 30.8 90.4 88.2 85.6
                HST     | 77.9 76.7 72.6 44.8 46.3 37.9 90.9 88.4 86.1
                SARB    | 77.9 76.5 72.2 45.6 45.0 37.4 90.7 88.4 85.9
                SARB*   | 78.4 76.8 72.7 46.0 45.1 37.7 91.5 88.3 86.0
                CSL     | 76.3 75.1 71.5 46.0 54.0 48.0 91.7 85.9 84.1
                Ours    | 81.0 79.0 75.7 49.2 51.4 45.1 93.7 88.9 86.2"""
        },
        ("mAP", "OF1", "CF1"),
    ),
    # The ticks that name the rows of this table are lost in part. Each share has seven lines, and the first is the only
    # one with a tick for S-BCE. The text gives the gains over BN-BCE of SR (5.1, 3.7, 4.0, 4.0, 4.5) and of CR without
    # SR (1.7, 1.3, 1.3, 1.3, 1.1), which fit lines 5 and 4; it says that CR without SR makes SR worse at most shares,
    # which fits line 6, and that CR with SR improves it everywhere, which fits line 7.
    table(
        "S4-table2",
        "Ablation study on MS-COCO with different proportions of known labels",
        {
            "10 %": """
                S-BCE                     | 61.7 64.3 53.5
                BN-BCE                    | 70.7 70.7 65.9
                BN-BCE + PL               | 70.8 70.4 65.2
                BN-BCE + CR (w/o SR)      | 72.4 73.2 68.0
                BN-BCE + SR               | 75.8 73.8 69.4
                BN-BCE + SR + CR (w/o SR) | 76.2 75.8 71.2
                BN-BCE + SR + CR (w/ SR)  | 77.2 76.6 72.1""",
            "30 %": """
                S-BCE                     | 73.1 73.4 68.0
                BN-BCE                    | 76.0 75.2 70.7
                BN-BCE + PL               | 76.2 75.1 70.5
                BN-BCE + CR (w/o SR)      | 77.3 76.6 72.1
                BN-BCE + SR               | 79.7 78.1 74.2
                BN-BCE + SR + CR (w/o SR) | 79.3 77.7 73.7
                BN-BCE + SR + CR (w/ SR)  | 80.3 78.6 74.7""",
            "50 %": """
                S-BCE                     | 74.8 74.4 69.1
                BN-BCE                    | 77.3 76.0 71.4
                BN-BCE + PL               | 77.4 76.0 71.3
                BN-BCE + CR (w/o SR)      | 78.6 77.4 72.9
                BN-BCE + SR               | 81.3 79.0 76.2
                BN-BCE + SR + CR (w/o SR) | 80.8 78.5 75.5
                BN-BCE + SR + CR (w/ SR)  | 81.8 79.4 76.7""",
            "70 %": """
                S-BCE                     | 76.2 75.8 70.7
                BN-BCE                    | 77.8 76.3 71.9
                BN-BCE + PL               | 78.0 76.3 71.9
                BN-BCE + CR (w/o SR)      | 79.1 77.8 73.4
                BN-BCE + SR               | 81.8 79.4 76.7
                BN-BCE + SR + CR (w/o SR) | 81.5 79.0 76.2
                BN-BCE + SR + CR (w/ SR)  | 82.1 79.8 76.7""",
            "90 %": """
                S-BCE                     | 77.7 76.6 72.2
                BN-BCE                    | 78.1 76.9 72.3
                BN-BCE + PL               | 78.3 76.9 72.2
                BN-BCE + CR (w/o SR)      | 79.2 77.9 73.4
                BN-BCE + SR               | 82.6 79.9 77.2
                BN-BCE + SR + CR (w/o SR) | 82.1 79.4 76.6
                BN-BCE + SR + CR (w/ SR)  | 82.7 80.0 77.4""",
        },
        ("mAP", "OF1", "CF1"),
        "the rows' names are partly read from the text, see the comment in the source",
        "81.8 79.4 76.7 is printed twice, at 50 % and at 70 %",
    ),
    table(
        "S4-table3",
        "Analysis of hyperparameter k on MS-COCO when α = 0.5",
        {
            ("20 %", "50 %"): """
                k=1 | 78.43 80.90
                k=2 | 78.55 81.27
                k=3 | 78.59 81.21
                k=4 | 78.70 81.27
                k=5 | 78.73 81.25"""
        },
        ("mAP",),
    ),
    table(
        "S4-table4",
        "Results on OpenImages V3, mAP",
        {
            "OpenImages V3": """
                Latent Noise | 69.4 70.4 74.8 79.2 85.5 75.9
                CNN-RNN      | 68.8 69.7 74.2 78.5 84.6 75.2
                Curriculum   | 70.4 71.3 76.2 80.5 86.8 77.1
                IMCL         | 71.0 72.6 77.6 81.8 87.3 78.1
                CSL          | 74.6 75.8 77.6 81.8 90.1 80.0
                Ours         | 76.0 77.7 79.5 83.1 91.2 81.5"""
        },
        ("G1", "G2", "G3", "G4", "G5", "All Gs"),
    ),
)
