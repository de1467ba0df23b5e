"""YAML with verl's key names; a package so that hydra finds it as ``pkg://configs``."""
