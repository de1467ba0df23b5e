"""Ray actors that hold the models, and the group that drives one actor a rank."""
