"""The ``verl`` alias: old code's ``import verl...`` served from here, by one table of names (``names.tsv``).

Importing this package is cheap: no torch, and the table is not read before ``verl`` is imported.
"""

from compat.alias.activation import alias_environment, enable_verl_alias
from compat.alias.errors import AliasAttributeError, AliasError

__all__ = ["AliasAttributeError", "AliasError", "alias_environment", "enable_verl_alias"]
