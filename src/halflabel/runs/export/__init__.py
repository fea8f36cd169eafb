"""Export of a trained run to an ONNX file or a folder for the Hugging Face Hub, with thresholds and calibration."""
