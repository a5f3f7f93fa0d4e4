"""Training: configuration, data on the device, the loop and its schedule, checkpoints, log, held-out looks, export."""
