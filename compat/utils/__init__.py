"""``verl.utils`` for old code: small helpers under their old names, each over what ``runtime`` has or PyTorch does."""
