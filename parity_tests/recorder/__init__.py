"""A file for users of verl to copy beside their trainer; nothing of ours imports it."""
