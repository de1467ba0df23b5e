"""``verl.utils.fsdp_utils``: models sharded with FSDP2 (``fully_shard``), moved, loaded and gathered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import _or_policy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils.clip_grad import clip_grad_norm_

from compat.utils.device import get_device_id, get_device_name, get_torch_device, is_cuda_available
from compat.utils.errors import NotBuiltError


def fsdp_version(model: nn.Module) -> int:
    """2 for a model of ``fully_shard``, 0 for one that is not sharded. FSDP1 is refused with ``NotBuiltError``."""
    if type(model).__name__ == "FullyShardedDataParallel":
        raise NotBuiltError("FSDP1 (FullyShardedDataParallel) is not supported: shard with apply_fsdp2")
    return 2 if isinstance(model, FSDPModule) else 0


def init_fn(x: nn.Module) -> nn.Module:
    """Memory for a module that was made on the meta device, on ranks that get their weights from rank 0."""
    if dist.get_rank() != 0:
        x = x.to_empty(device=torch.device(get_device_name(), get_device_id()) if is_cuda_available else "cpu")
        get_torch_device().empty_cache() if is_cuda_available else None
    return x


def get_init_weight_context_manager(
    use_meta_tensor: bool = True, mesh: Any = None
) -> Callable[[], AbstractContextManager[Any]]:
    """What a model is built in: with ``use_meta_tensor``, without memory for weights on all ranks but the first."""
    from accelerate import init_empty_weights

    is_first = (dist.get_rank() if mesh is None else mesh.get_coordinate()[-1]) == 0 if use_meta_tensor else True
    return functools.partial(torch.device, "cpu") if is_first else init_empty_weights


def get_fsdp_wrap_policy(module: nn.Module, config: Any = None, is_lora: bool = False) -> Callable[..., bool] | None:  # noqa: ARG001
    """Which submodules FSDP wraps: by ``min_num_params``, else by the classes of the model's layers; None for none."""
    settings = config if config is not None else {}
    if settings.get("disable", False):
        return None
    size = settings.get("min_num_params", 0)
    if size > 0:
        policies: list[Callable[..., bool]] = [functools.partial(size_based_auto_wrap_policy, min_num_params=size)]
    else:
        classes = {type(layer) for layer in _layers(module, settings)}
        if not classes:
            return None
        policies = [functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)]
    return functools.partial(_or_policy, policies=policies)


def _layers(model: nn.Module, settings: Mapping[str, Any]) -> Iterator[nn.Module]:
    """The submodules that are layers, by the names of their classes."""
    names = settings.get("transformer_layer_cls_to_wrap", None) or getattr(model, "_no_split_modules", None) or ()
    wanted = {names} if isinstance(names, str) else set(names)
    return (part for part in model.modules() if type(part).__name__ in wanted)


def apply_fsdp2(model: nn.Module, fsdp_kwargs: Mapping[str, Any], config: Any) -> None:
    """Shard each layer, then the rest, in place. Raises ``NotBuiltError`` for a model whose layers are not known.

    fsdp_kwargs: of ``fully_shard``. config: ``wrap_policy.transformer_layer_cls_to_wrap`` names the layers' classes.
    """
    layers = list(_layers(model, config.get("wrap_policy", None) or {}))
    if not layers:
        raise NotBuiltError(
            f"{type(model).__name__} does not say which modules are its layers: name their class in "
            "wrap_policy.transformer_layer_cls_to_wrap"
        )
    untied = (
        []
        if getattr(getattr(model, "config", None), "tie_word_embeddings", True)
        else [part for part in model.modules() if isinstance(part, nn.Embedding)]
    )
    for part in (*layers, *untied, model):
        fully_shard(part, **fsdp_kwargs)


def fsdp2_load_full_state_dict(
    model: nn.Module,
    full_state: Mapping[str, Tensor],
    device_mesh: Any = None,  # noqa: ARG001  (the model knows its own)
    cpu_offload: Any = None,
) -> None:
    """Load weights that rank 0 has into a sharded model, in place (a collective call)."""
    device = torch.device(get_device_name())
    if dist.get_rank() == 0:
        model.to(device)
    else:
        model.to_empty(device=device)
    options = StateDictOptions(full_state_dict=True, cpu_offload=cpu_offload is not None, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(full_state), options=options)
    for _, buffer in sorted(model.named_buffers()):  # rotary embeddings are in no state dict
        dist.broadcast(buffer, src=0)


def get_fsdp_full_state_dict(model: nn.Module, offload_to_cpu: bool = True, rank0_only: bool = True) -> dict[str, Any]:
    """All weights of a sharded model, on rank 0 or everywhere (a collective call)."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=offload_to_cpu and rank0_only)
    state: dict[str, Any] = get_model_state_dict(model, options=options)
    return {name: value.cpu() for name, value in state.items()} if offload_to_cpu and not rank0_only else state


def fsdp2_clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients to a norm of at most ``max_norm``; the norm before, over all ranks (a collective call)."""
    norm = clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def get_shard_placement_fn(fsdp_size: int) -> Callable[[Tensor], Shard]:
    """Shard a parameter along the first dimension that ``fsdp_size`` divides, else along the first."""

    def place(parameter: Tensor) -> Shard:
        return Shard(next((axis for axis, size in enumerate(parameter.shape) if size % fsdp_size == 0), 0))

    return place


def offload_fsdp2_model_to_cpu(model: nn.Module, empty_cache: bool = True) -> None:
    """Move a model to the CPU."""
    fsdp_version(model)
    model.to("cpu")
    if empty_cache and is_cuda_available:
        torch.cuda.empty_cache()


def load_fsdp2_model_to_gpu(model: nn.Module) -> None:
    """Move a model to the GPU; nothing on a CPU."""
    fsdp_version(model)
    if is_cuda_available:
        model.to(get_device_id())


offload_fsdp_model_to_cpu = offload_fsdp2_model_to_cpu
load_fsdp_model_to_gpu = load_fsdp2_model_to_gpu


@torch.no_grad()
def load_fsdp_optimizer(optimizer: torch.optim.Optimizer, device_id: int | str | torch.device) -> None:
    """Move an optimizer's state to a device; nothing for a GPU where there is none."""
    if device_id != "cpu" and not is_cuda_available:
        return
    for state in optimizer.state.values():
        state.update({name: value.to(device_id) for name, value in state.items() if isinstance(value, Tensor)})


def offload_fsdp_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Move an optimizer's state to the CPU."""
    load_fsdp_optimizer(optimizer, "cpu")


def set_reshard_after_forward(module: FSDPModule, reshard_after_forward: bool, recurse: bool = True) -> None:
    """Whether parameters are given up after the forward pass."""
    module.set_reshard_after_forward(reshard_after_forward, recurse)


__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "apply_fsdp2",
    "fsdp2_clip_grad_norm_",
    "fsdp2_load_full_state_dict",
    "fsdp_version",
    "fully_shard",
    "get_fsdp_full_state_dict",
    "get_fsdp_wrap_policy",
    "get_init_weight_context_manager",
    "get_shard_placement_fn",
    "init_fn",
    "load_fsdp2_model_to_gpu",
    "load_fsdp_model_to_gpu",
    "load_fsdp_optimizer",
    "offload_fsdp2_model_to_cpu",
    "offload_fsdp_model_to_cpu",
    "offload_fsdp_optimizer",
    "set_reshard_after_forward",
]
