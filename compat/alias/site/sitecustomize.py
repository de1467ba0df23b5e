"""Python imports this at its start when the folder is on PYTHONPATH: it installs the alias and loads nothing else."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

FOLDER = os.path.dirname(os.path.abspath(__file__))


def run_next_sitecustomize() -> None:
    """Run the ``sitecustomize`` that stood in the search path before ours did."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def install_alias() -> None:
    """Serve ``import verl`` from the alias; a Python without verlift is told that it cannot."""
    try:
        from compat.alias import finder
    except ImportError as error:
        print(f"verlift: the verl alias is not active in {sys.executable}: {error}", file=sys.stderr)
    else:
        finder.install()


install_alias()
run_next_sitecustomize()
