"""verl's dataset class of verl 0.2 to 0.9, and how old recipes make datasets and samplers."""
