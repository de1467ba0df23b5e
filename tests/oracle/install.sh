#!/bin/sh
# Installs verl 0.9.1, the oracle of tests marked `oracle`, into .oracle/ (never into the environment: the name `verl` is
# an alias of ours there). Its dependencies come without theirs, so that no second torch arrives. `make oracle` and tox call
# this; PYTHON is the interpreter of the environment that it is for, .venv's by default.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
"$python" -m pip install --quiet --upgrade --no-deps --target .oracle \
    verl==0.9.1 cachetools codetiming dill fastapi orjson peft pylatexenc starlette uvicorn
# It warns of engines that are not installed; only an error is news.
"$python" -W ignore -c "import sys; sys.path.insert(0, '.oracle'); import verl.trainer.ppo.ray_trainer"
echo "verl 0.9.1 is in .oracle/: run pytest -m oracle"
