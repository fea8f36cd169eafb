"""Export: a trained run as one file or folder that others can use, with its thresholds and calibration inside."""
