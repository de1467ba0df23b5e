"""verl's presets of rollout correction, as class methods of its dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from compat.configs.groups import Group

_IS, _GEO, _K3 = 2.0, "0.999_1.001", 0.01
_BY_THRESHOLD = {"threshold": "rollout_is_threshold"}
PRESETS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "disabled": ({"rollout_is": None}, {}),
    "decoupled_token_is": ({"rollout_is": "token", "rollout_is_threshold": _IS}, {"threshold": "rollout_is_threshold"}),
    "decoupled_seq_is": (
        {"rollout_is": "sequence", "rollout_is_threshold": _IS},
        {"threshold": "rollout_is_threshold"},
    ),
    "bypass_ppo_clip": ({"rollout_is": None, "bypass_mode": True}, {}),
}
"""``RolloutCorrectionConfig.NAME(...)``: the settings, and which parameter sets which of them."""


_CLIP, _REINFORCE = ({"bypass_mode": True, "loss_type": loss_type} for loss_type in ("ppo_clip", "reinforce"))
_REJECTIONS = {"geo_rs": ("seq_mean_k1", _GEO), "k3_rs": ("seq_mean_k3", _K3)}
_WEIGHTS = {"seq_tis": "sequence", "token_tis": "token"}
_FAMILIES: tuple[tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]], ...] = (
    ("decoupled", {}, ("geo_rs", "k3_rs"), ("seq_tis", "token_tis")),
    ("bypass_ppo_clip", _CLIP, ("geo_rs", "k3_rs"), ()),
    ("bypass_pg", _REINFORCE, ("geo_rs",), ("seq_tis", "token_tis")),
)
"""Presets that reject: how they begin, what they set, by what they reject, and with which weights beside without."""

for _prefix, _mode, _rejections, _weights in _FAMILIES:
    for _rejection in _rejections:
        _rule, _threshold = _REJECTIONS[_rejection]
        _rejected = {"rollout_rs": _rule, "rollout_rs_threshold": _threshold, **_mode}
        _by_name = {"rs_threshold": "rollout_rs_threshold"}
        PRESETS[f"{_prefix}_{_rejection}"] = ({"rollout_is": None, **_rejected}, _by_name)
        for _suffix in _weights:
            PRESETS[f"{_prefix}_{_rejection}_{_suffix}"] = (
                {"rollout_is": _WEIGHTS[_suffix], "rollout_is_threshold": _IS, **_rejected},
                {"is_threshold": "rollout_is_threshold", **_by_name},
            )
PRESETS["bypass_pg_is"] = ({**PRESETS["decoupled_seq_is"][0], **_REINFORCE}, _BY_THRESHOLD)
PRESETS["decoupled_seq_is_rs"] = (
    {**PRESETS["decoupled_seq_is"][0], "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    {"is_threshold": "rollout_is_threshold", "rs_threshold": "rollout_rs_threshold"},
)


@dataclass
class CorrectionGroup(Group):
    """``algorithm.rollout_correction``, with verl's presets as class methods (``PRESETS``)."""

    @classmethod
    def decoupled_token_icepop(cls, threshold: float = 5.0, threshold_lower: float = 0.5) -> Self:
        """Weights of tokens outside the bounds become 0."""
        return cls(**_icepop(threshold, threshold_lower))

    @classmethod
    def bypass_pg_token_icepop(cls, threshold: float = 5.0, threshold_lower: float = 0.5) -> Self:
        """As ``decoupled_token_icepop``, in bypass mode with its REINFORCE loss."""
        return cls(**{**_icepop(threshold, threshold_lower), **_REINFORCE})


def _icepop(upper: float, lower: float) -> dict[str, Any]:
    return {"rollout_is": "token", "rollout_is_threshold": f"{lower}_{upper}"}


def _preset(name: str) -> Callable[..., CorrectionGroup]:
    settings, parameters = PRESETS[name]

    def preset(cls: type[CorrectionGroup], *args: Any, **kwargs: Any) -> CorrectionGroup:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        return cls(**{**settings, **{parameters[key]: value for key, value in given.items()}})

    preset.__name__, preset.__doc__ = name, f"The preset {name}: {settings}."
    return preset


for _name in PRESETS:
    setattr(CorrectionGroup, _name, classmethod(_preset(_name)))
