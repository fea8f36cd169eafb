"""Fill unknown labels that a trained model is sure of, marked as model-made; and undo that."""
