"""The legacy trainer: one padded ``DataProto`` that every stage unions columns onto."""
