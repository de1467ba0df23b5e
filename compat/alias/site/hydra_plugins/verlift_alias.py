"""Hydra finds this by the folder's name: verl's configs and keys of any version in a recipe's own hydra app."""

import warnings

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath

from compat.alias.hydra_keys import accept_verl_keys
from runtime.config import composing


class AliasSearchPath(composing.VerliftSearchPath):
    """Our configs behind the recipe's; hydra asks for it before it composes anything."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        accept_verl_keys(ConfigLoaderImpl)
        # `file://verl/trainer/config` is a folder of verl's checkout: ours follows, so that its absence is no fault.
        warnings.filterwarnings("ignore", message=r"provider=hydra\.searchpath.*verl")
        super().manipulate_search_path(search_path)
