"""The training loop that both trainers share, and what can observe it."""
