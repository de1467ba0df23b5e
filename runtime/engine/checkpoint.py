"""An engine's weights, optimizer, schedule and random state in a folder, sharded as they lie on the ranks.

``torch.distributed.checkpoint`` writes and reads them, so that another number of ranks can go on from them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from runtime.engine.engine import Engine
from runtime.errors import CheckpointError

_METADATA = ".metadata"
"""What ``torch.distributed.checkpoint`` writes last: a folder without it is no checkpoint."""


def save_engine(engine: Engine, folder: str | os.PathLike[str]) -> None:
    """Write everything that a resumed run needs to ``folder``, replacing what is there; collective.

    It is written beside and renamed, so that a run that ends in between leaves the old checkpoint whole.
    """
    target = Path(folder)
    beside = target.with_name(f"{target.name}.writing")
    if engine.rank == 0:
        shutil.rmtree(beside, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dcp.save(_state(engine), checkpoint_id=beside)
    dist.barrier()
    if engine.rank == 0:
        replaced = target.with_name(f"{target.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        beside.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    dist.barrier()


def load_engine(engine: Engine, folder: str | os.PathLike[str]) -> None:
    """Read what ``save_engine`` wrote, for any number of ranks; collective.

    Raises ``CheckpointError`` naming the folder when it holds no checkpoint, or one of another model.
    """
    if not (Path(folder) / _METADATA).is_file():
        raise CheckpointError(f"{folder} holds no checkpoint; give the folder of a role, such as global_step_5/actor")
    state = _state(engine)
    try:
        dcp.load(state, checkpoint_id=folder)
    except dcp.CheckpointException as error:
        reason = str(next(iter(error.failures.values()))).splitlines()[0] if error.failures else error
        raise CheckpointError(f"{folder} does not fit this model: {reason}") from error
    set_state_dict(
        engine.model,
        engine.optimizer or [],
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    if engine.schedule is not None:
        engine.schedule.load_state_dict(state["schedule"])
    engine.updates = state["updates"]
    torch.set_rng_state(state[_random(engine)])


def _state(engine: Engine) -> dict[str, Any]:
    model, optimizer = get_state_dict(engine.model, engine.optimizer or [])
    schedule = {} if engine.schedule is None else engine.schedule.state_dict()
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "updates": engine.updates,
        _random(engine): torch.get_rng_state(),
    }


def _random(engine: Engine) -> str:
    return f"random_state_{engine.rank}"
