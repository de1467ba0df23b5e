"""verl's config dataclasses, made from the keys of its YAML, and what turns a config group into one of them."""
