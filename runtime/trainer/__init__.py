"""The training loop that both trainers share."""
