"""What the config dataclasses of verl do beside holding values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from compat.ppo.errors import BadSettingError
from compat.utils.base_config import BaseConfig
from shared_algos.aggregation import check_aggregation

MISSING = "???"
"""Marks a field that must be given, as in OmegaConf."""


@dataclass
class Group(BaseConfig):
    """A ``BaseConfig`` that keeps keys which are no field of its class: a recipe's own keys are not lost."""

    @classmethod
    def of(cls, known: dict[str, Any], more: dict[str, Any]) -> Self:
        """An object with fields ``known`` and, beside them, the keys ``more``."""
        group = cls(**known)
        for key, value in more.items():
            object.__setattr__(group, key, value)
        return group

    def _more(self) -> list[str]:
        names = {field.name for field in fields(self)}
        return [key for key in self.__dict__ if key not in names]

    def __iter__(self) -> Iterator[str]:
        yield from (field.name for field in fields(self))
        yield from self._more()

    def __len__(self) -> int:
        return len(fields(self)) + len(self._more())

    def __contains__(self, key: object) -> bool:
        return key in list(self)


@dataclass
class TrainedGroup(Group):
    """Of a model that is updated: the actor or the critic."""

    engine_field: ClassVar[str] = ""
    """The field that ``engine`` stands for."""
    role: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raises ``BadSettingError`` for an aggregation that does not exist, or a strategy that is not given."""
        strategy = self.get("strategy")
        if strategy == MISSING:
            raise BadSettingError(f"{self.role}.strategy must be given; set it to fsdp2")
        check_aggregation(self["loss_agg_mode"])
        if self.get(self.engine_field) is not None:
            object.__setattr__(self, "engine", self[self.engine_field])
            if isinstance(self["engine"], Group):
                object.__setattr__(self["engine"], "strategy", strategy)

    def validate(self, n_gpus: int, train_batch_size: int, model_config: Any = None) -> None:  # noqa: ARG002
        """Raises ``BadSettingError`` (a ``ValueError``, as in verl) for a mini-batch larger than the batch."""
        if self["ppo_mini_batch_size"] > train_batch_size and not self["use_dynamic_bsz"]:
            raise BadSettingError(
                f"{self.role}.ppo_mini_batch_size={self['ppo_mini_batch_size']} is more than "
                f"data.train_batch_size={train_batch_size}; make the mini-batch at most that"
            )
        if n_gpus < 1:
            raise BadSettingError(f"there are {n_gpus} ranks; set trainer.nnodes and trainer.n_gpus_per_node")


@dataclass
class ActorGroup(TrainedGroup):
    """``actor_rollout_ref.actor``."""

    engine_field = "fsdp_config"
    role = "actor"


@dataclass
class CriticGroup(TrainedGroup):
    """``critic``."""

    engine_field = "fsdp"
    role = "critic"


@dataclass
class OptimizerGroup(Group):
    """``optim``: the older names of two keys are taken over."""

    def __post_init__(self) -> None:
        for old, new in (("grad_clip", "clip_grad"), ("warmup_style", "lr_scheduler_type")):
            if self.get(old) is not None:
                object.__setattr__(self, new, self[old])


@dataclass
class ModelGroup(Group):
    """``actor_rollout_ref.model``: with a path, tokenizer and configs of that model are there too."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` where ``path`` is no model that can be read."""
        # transformers takes seconds to import, and most recipes only hand the class on.
        from compat.utils.fs import copy_to_local
        from compat.utils.import_utils import import_external_libs
        from compat.utils.model import get_generation_config, get_huggingface_actor_config
        from compat.utils.tokenizer import hf_processor, hf_tokenizer

        if self["path"] == MISSING:
            return
        import_external_libs(self["external_lib"])
        trusted = {"trust_remote_code": self["trust_remote_code"]}
        places = {"local_path": self["path"]}
        for name in ("hf_config_path", "tokenizer_path"):
            object.__setattr__(self, name, self[name] or self["path"])
            places[f"local_{name}"] = self[name]
        for name, place in places.items():
            object.__setattr__(self, name, copy_to_local(place, use_shm=self["use_shm"]))
        if self["load_tokenizer"]:
            object.__setattr__(self, "tokenizer", hf_tokenizer(self["local_tokenizer_path"], **trusted))
            object.__setattr__(self, "processor", hf_processor(self["local_tokenizer_path"], **trusted))
            if self["custom_chat_template"] is not None:
                (self["processor"] or self["tokenizer"]).chat_template = self["custom_chat_template"]
        config = get_huggingface_actor_config(self["local_hf_config_path"], dict(self["override_config"]), **trusted)
        object.__setattr__(self, "hf_config", config)
        object.__setattr__(self, "generation_config", get_generation_config(self["local_hf_config_path"], **trusted))
        object.__setattr__(self, "architectures", getattr(config, "architectures", None))

    def get_processor(self) -> Any:
        """The processor, or for a text model the tokenizer."""
        return self["processor"] if self["processor"] is not None else self["tokenizer"]
