"""The old surface kept working: ``DataProto``, padded layouts, and adapters for functions with verl's signatures."""
