"""From data files to batches of prompts, and from messages to prompt tokens."""
