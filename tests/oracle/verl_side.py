"""The process that imports verl 0.9.1: (function name, arguments) come pickled on stdin, results leave on stdout.

Started by the `verl` fixture with the folder of the installation. Each function calls the one of verl that it is named
after, on padded ``[B, R]`` tensors.
"""

import contextlib
import os
import pickle
import sys
import traceback


def gae(**kwargs):
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    return compute_gae_advantage_return(**kwargs)


def grpo(**kwargs):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    return compute_grpo_outcome_advantage(**kwargs)


def grpo_of_sessions(uid, keys, **columns):
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    data = DataProto.from_dict(tensors=columns, non_tensors={"uid": uid})
    return compute_advantage_for_multi_trajectories(data, keys, "grpo").batch["advantages"]


def estimator(name, config=None, float64=True, **kwargs):
    """Advantages and returns of any estimator.

    config: settings of its ``AlgoConfig``, where it takes one. float64: in float64 throughout, since verl computes some
    constants and statistics in float32 whatever the input.
    """
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    if config is not None:
        kwargs["config"] = AlgoConfig(**config)
    with float64_throughout() if float64 else contextlib.nullcontext():
        return get_adv_estimator_fn(name)(**kwargs)


def advantages_of_sessions(name, uid, keys, config=None, **columns):
    """``[B, R]`` as V1's advantage stage computes them."""
    from verl import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    data = DataProto.from_dict(tensors=columns, non_tensors={"uid": uid})
    config = AlgoConfig(adv_estimator=name, **(config or {}))
    return compute_advantage_for_multi_trajectories(data, keys, name, config=config).batch["advantages"]


@contextlib.contextmanager
def float64_throughout():
    """Where verl asks for float32 or leaves the dtype open, it gets float64.

    The 1e-8 that ``masked_mean`` adds to its count is left out: in float32 it is lost, and verl works in float32.
    """
    import torch
    from verl.trainer.ppo import core_algos
    from verl.utils import groupwise, torch_functional

    np, masked_mean = core_algos.np, torch_functional.masked_mean
    torch.set_default_dtype(torch.float64)
    core_algos.torch = groupwise.torch = Widened(torch)
    core_algos.np = Widened(np)
    torch_functional.masked_mean = lambda values, mask: torch_functional.masked_sum(values, mask) / mask.sum()
    try:
        yield
    finally:
        torch_functional.masked_mean = masked_mean
        core_algos.torch = groupwise.torch = torch
        core_algos.np = np
        torch.set_default_dtype(torch.float32)


class Widened:
    """A module whose float32 is float64."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, "float64" if name == "float32" else name)


def agg_loss(**kwargs):
    from verl.trainer.ppo.core_algos import agg_loss

    return agg_loss(**kwargs)


def masked_whiten(**kwargs):
    from verl.utils.torch_functional import masked_whiten

    return masked_whiten(**kwargs)


def policy_loss(name, log_prob, config, seed=0, **kwargs):
    """Loss, its gradient and the metrics; ``config`` has the actor's keys, ``seed`` is of what the loss draws."""
    import torch
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    of_loss = {**config.get("policy_loss", {})}
    of_loss["rollout_correction"] = RolloutCorrectionConfig(**of_loss.get("rollout_correction", {}))
    config = {**config, "policy_loss": PolicyLossConfig(loss_mode=name, **of_loss)}
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **config)
    log_prob.requires_grad_()
    torch.manual_seed(seed)
    loss, metrics = get_policy_loss_fn(name)(log_prob=log_prob, config=config, **kwargs)
    loss.backward()
    return loss.detach(), log_prob.grad, metrics


def value_loss(vpreds, **kwargs):
    """Loss, its gradient and the share of clipped tokens."""
    from verl.trainer.ppo.core_algos import compute_value_loss

    vpreds.requires_grad_()
    loss, clipfrac = compute_value_loss(vpreds=vpreds, **kwargs)
    loss.backward()
    return loss.detach(), vpreds.grad, clipfrac.detach()


def kl_penalty(logprob, **kwargs):
    """Value and gradient."""
    from verl.trainer.ppo.core_algos import kl_penalty

    logprob.requires_grad_()
    value = kl_penalty(logprob=logprob, **kwargs)
    value.sum().backward()
    return value.detach(), logprob.grad


def apply_kl_penalty(beta, kind, **columns):
    """Token rewards and mean KL."""
    from verl import DataProto
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    data, metrics = apply_kl_penalty(DataProto.from_dict(tensors=columns), FixedKLController(beta), kind)
    return data.batch["token_level_rewards"], metrics["actor/reward_kl_penalty"]


def adaptive_kl(init_kl_coef, target_kl, horizon, updates):
    """The coefficient after each update."""
    from verl.trainer.ppo.core_algos import AdaptiveKLController

    controller = AdaptiveKLController(init_kl_coef, target_kl, horizon)
    values = []
    for current_kl, n_steps in updates:
        controller.update(current_kl, n_steps)
        values.append(controller.value)
    return values


def rollout_correction(**kwargs):
    """Weights ``[B, R]`` or None, the mask after rejection and the metrics."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(**kwargs)
    return None if weights is None else weights.batch["rollout_is_weights"], mask, metrics


def weight_bounds(threshold):
    """Upper and lower bound of the weights."""
    from verl.trainer.ppo.rollout_corr_helper import _parse_rollout_is_threshold

    return _parse_rollout_is_threshold(threshold)


def off_policy_metrics(**kwargs):
    from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics

    return compute_offpolicy_metrics(**kwargs)


def pf_ppo(token_level_scores, seed, **kwargs):
    """The rows that are drawn."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import compute_pf_ppo_reweight_data

    rows = np.arange(len(token_level_scores))
    data = DataProto.from_dict(tensors={"token_level_scores": token_level_scores}, non_tensors={"row": rows})
    torch.manual_seed(seed)
    return compute_pf_ppo_reweight_data(data, **kwargs).non_tensor_batch["row"]


def groups_without_spread(values, uids):
    """The uids that V1's replay buffer would drop, of trajectories with these values of the metric."""
    from verl.trainer.ppo.v1 import replay_buffer

    keys = [f"{uid}_{session}_0" for session, uid in enumerate(uids)]
    rewards = dict(zip(keys, values, strict=True))
    buffer = object.__new__(replay_buffer.ReplayBuffer)
    buffer.filter_groups_metric = "reward"
    buffer.finished_keys = {"train": set(uids)}
    buffer.partitions = {"train": keys}
    buffer._dapo_classification_cache = {"train": {}}
    replay_buffer.tq.kv_batch_get = lambda keys, **_: {"rm_scores": [rewards[key] for key in keys]}
    return buffer._dapo_filtered_keys("train")[0]


def of_recipe(file, kind, name, config=None, log_prob=None, **kwargs):
    """What verl gives for an estimator or a loss (with its gradient) that the recipe in ``file`` registers."""
    import importlib.util

    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.workers.config import ActorConfig

    if "recipe" not in sys.modules:
        spec = importlib.util.spec_from_file_location("recipe", file)
        sys.modules["recipe"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["recipe"])
    if kind == "estimator":
        more = {} if config is None else {"config": AlgoConfig(**config)}
        return get_adv_estimator_fn(name)(**more, **kwargs)
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **config)
    log_prob.requires_grad_()
    loss, *metrics = get_policy_loss_fn(name)(log_prob=log_prob, config=config, **kwargs)
    loss.backward()
    return loss.detach(), log_prob.grad, [m if isinstance(m, dict) else float(m) for m in metrics]


def mean_metric(values):
    """What verl's workers report of a loss's metric that has ``values``, one a micro-batch."""
    from verl.utils.metric import AggregationType, Metric

    metric = Metric(AggregationType.MEAN)
    for value in values:
        metric.append(value)
    return metric.aggregate()


def taken_names():
    """What verl says of a second estimator of one name, and which of two losses of one name it keeps."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_adv_est, register_policy_loss

    register_policy_loss("taken")(lambda: "the first loss")
    register_policy_loss("taken")(lambda: "the second loss")
    try:
        register_adv_est("rloo")(lambda: None)
    except ValueError as error:
        return str(error).partition(":")[0], get_policy_loss_fn("taken")()


def serve(folder):
    """Answer until stdin closes; a call that raises is answered with its traceback."""
    sys.path.insert(0, folder)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what verl prints must not mix with the answers
    while True:
        try:
            name, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (True, globals()[name](**kwargs))
        except Exception:
            answer = (False, traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
