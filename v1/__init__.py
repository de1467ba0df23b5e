"""The V1 trainer: trajectories live in TransferQueue as jagged tensors, the controller holds keys and tags."""
