"""The pieces of a research recipe: an estimator, a loss and a reward manager, registered under names of their own."""

from collections import defaultdict

import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss
from verl.utils.reward_score import default_compute_score
from verl.utils.torch_functional import masked_mean
from verl.workers.reward_manager import register


@register_adv_est("median_baseline")
def compute_median_baseline_advantage(token_level_rewards, response_mask, index, config=None, **kwargs):
    """Reward less the median of its group."""
    scores = token_level_rewards.sum(dim=-1)
    id2scores = defaultdict(list)
    with torch.no_grad():
        for i in range(scores.shape[0]):
            id2scores[index[i]].append(scores[i])
        id2median = {idx: torch.stack(values).median() for idx, values in id2scores.items()}
        for i in range(scores.shape[0]):
            scores[i] = scores[i] - id2median[index[i]]
        scores = scores.unsqueeze(-1) * response_mask
    return scores, scores


@register_policy_loss("clip_then_mask")
def compute_policy_loss_clip_then_mask(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None
):
    """Tokens whose ratio has left the trust region are masked instead of clipped; four values, as up to verl 0.6."""
    negative_approx_kl = log_prob - old_log_prob
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = masked_mean(-negative_approx_kl, response_mask)
    inside = (ratio > 1 - config.clip_ratio_low) & (ratio < 1 + config.clip_ratio_high)
    pg_losses = -advantages * ratio * inside
    pg_loss = agg_loss(loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    pg_clipfrac = masked_mean((~inside).float(), response_mask)
    return pg_loss, pg_clipfrac, ppo_kl, torch.tensor(0.0)


@register("length_aware")
class LengthAwareRewardManager:
    """Scores a whole batch: the task's score, less a little for each token."""

    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", per_token=0.01, **kwargs):
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key
        self.per_token = per_token

    def __call__(self, data: DataProto, return_dict=False):
        reward_tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        reward_extra_info = defaultdict(list)
        already_print_data_sources = {}

        for i in range(len(data)):
            data_item = data[i]
            prompt_length = data_item.batch["prompts"].shape[-1]
            valid_prompt_length = data_item.batch["attention_mask"][:prompt_length].sum()
            valid_prompt_ids = data_item.batch["prompts"][-valid_prompt_length:]
            valid_response_length = data_item.batch["attention_mask"][prompt_length:].sum()
            valid_response_ids = data_item.batch["responses"][:valid_response_length]

            prompt_str = self.tokenizer.decode(valid_prompt_ids, skip_special_tokens=True)
            response_str = self.tokenizer.decode(valid_response_ids, skip_special_tokens=True)
            ground_truth = data_item.non_tensor_batch["reward_model"]["ground_truth"]
            data_source = data_item.non_tensor_batch[self.reward_fn_key]
            extra_info = data_item.non_tensor_batch.get("extra_info", None)

            score = self.compute_score(
                data_source=data_source, solution_str=response_str, ground_truth=ground_truth, extra_info=extra_info
            )
            reward_extra_info["task_score"].append(float(score))
            reward_tensor[i, valid_response_length - 1] = float(score) - self.per_token * float(valid_response_length)

            if already_print_data_sources.setdefault(data_source, 0) < self.num_examine:
                already_print_data_sources[data_source] += 1
                print("[prompt]", prompt_str)
                print("[response]", response_str)
                print("[score]", score)

        if return_dict:
            return {"reward_tensor": reward_tensor, "reward_extra_info": reward_extra_info}
        return reward_tensor
