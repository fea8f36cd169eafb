"""The training loop and what it needs: configuration, checkpoints, callbacks, devices."""
