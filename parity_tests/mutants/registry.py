"""The planted faults, each one line of the code as it stands; a test keeps them in step with it."""

from __future__ import annotations

from collections.abc import Mapping

from parity_tests.mutants.mutant import Mutant

_ADVANTAGES = ("advantages", "returns")
# Series are told in the order of their names; a loss that is off shows in its gradient first.
_ACTOR = ("actor/grad_norm", "actor/loss", "actor/pg_loss")
_CRITIC = ("critic/grad_norm", "critic/loss", "critic/vf_loss")
# With two epochs the entropy of the second one differs as well, and has the first name.
_ACTOR_EPOCHS = ("actor/entropy_loss", *_ACTOR)
_LOG_PROBS = ("old_log_probs",)
# The norm is told before clipping, so the first to differ is that of the next mini-batch.
_CLIPPED = ("actor/grad_norm", "actor.model.embed_tokens.weight")


def _shared(name: str, setting: str, target: str, old: str, new: str, stage: str, fields: tuple[str, ...]) -> Mutant:
    return Mutant(name, "shared", target, old, new, stage, fields, setting)


SHARED = (
    # Advantages.
    _shared(
        "biased std of a group", "grpo", "shared_algos.groups:group_std",
        "(groups.lengths - 1).clamp(min=1)", "groups.lengths", "advantage", _ADVANTAGES,
    ),
    _shared(
        "baseline of a group dropped", "grpo", "shared_algos.groups:center_groups",
        "scores.double() - groups.spread(baseline)", "scores.double()", "advantage", _ADVANTAGES,
    ),
    _shared(
        "outcome of the row before", "grpo", "shared_algos.advantages.outcomes:Outcomes.of",
        "(inputs.token_level_rewards)[rows]", "(inputs.token_level_rewards)[rows.roll(1)]", "advantage", _ADVANTAGES,
    ),
    # Two rows then share group, session and index, which the core refuses.
    _shared(
        "one group for all prompts", "grpo", "runtime.advantage:AdvantageStage._inputs",
        "groups=batch.groups", "groups=torch.zeros_like(batch.groups)", "advantage", ("refused",),
    ),
    _shared(
        "lambda taken for gamma", "ppo", "shared_algos.advantages.gae:gae",
        "config.gamma, config.lam", "config.lam, config.lam", "advantage", _ADVANTAGES,
    ),
    _shared(
        "advantages not whitened", "ppo", "shared_algos.advantages.gae:gae",
        "whiten_tokens(advantages, episodes.segments), returns", "advantages, returns", "advantage", ("advantages",),
    ),
    _shared(
        "returns whitened as well", "ppo", "shared_algos.advantages.gae:gae",
        "episodes.segments), returns", "episodes.segments), whiten_tokens(returns, episodes.segments)",
        "advantage", ("returns",),
    ),
    _shared(
        "reward lost on a masked token", "ppo", "shared_algos.advantages.episodes:Episodes.of",
        "kept.gather_sums(inputs.token_level_rewards)", "kept.gather(inputs.token_level_rewards)",
        "advantage", _ADVANTAGES,
    ),
    _shared(
        "mask dropped from the advantages", "ppo", "runtime.advantage:AdvantageStage._inputs",
        'response_mask=batch["response_mask"]', 'response_mask=torch.ones_like(batch["response_mask"])',
        "advantage", _ADVANTAGES,
    ),
    _shared(
        "mask shifted by a token", "ppo", "runtime.advantage:AdvantageStage._inputs",
        'response_mask=batch["response_mask"]', 'response_mask=batch["response_mask"].roll(1)',
        "advantage", _ADVANTAGES,
    ),
    _shared(
        "KL dropped from the reward", "kl", "shared_algos.kl:apply_kl_penalty",
        "token_level_scores - beta * penalty", "token_level_scores", "advantage", ("token_level_rewards",),
    ),
    _shared(
        "rejected tokens stay", "kl", "runtime.advantage:AdvantageStage.__call__",
        'columns["response_mask"] = corrected.response_mask', "pass", "advantage",
        ("response_mask", "token_level_rewards"),
    ),
    # Forward passes.
    _shared(
        "temperature not applied", "grpo", "runtime.workers.model_workers:ModelWorker._temperature",
        "float(rollout.temperature) if", "1.0 if", "old_log_prob", _LOG_PROBS,
    ),
    _shared(
        "log-prob of the token before", "grpo", "runtime.engine.models:PolicyModel.forward",
        "[batch.predictors + 1]", "[batch.predictors]", "old_log_prob", _LOG_PROBS,
    ),
    _shared(
        "state of the token after", "ppo", "runtime.engine.models:_packed_states",
        "hidden[0][batch.predictors]", "hidden[0][batch.predictors + 1]", "old_log_prob", _LOG_PROBS,
    ),
    _shared(
        "rows of a micro-batch swapped", "grpo", "runtime.engine.engine:Engine.infer",
        "values[: places.numel()].cpu()", "values[: places.numel()].cpu().flip(0)", "old_log_prob", _LOG_PROBS,
    ),
    _shared(
        "value of the token before", "ppo", "runtime.engine.models:ValueModel.forward",
        ".sum(-1)", ".sum(-1).roll(1)", "values", ("values",),
    ),
    # Losses.
    _shared(
        "mean over sequences for tokens", "grpo", "shared_algos.aggregation:aggregate",
        "_at_least_one(denominators.tokens)", "_at_least_one(denominators.sequences)", "update_actor", _ACTOR,
    ),
    _shared(
        "horizon dropped", "kl", "shared_algos.aggregation:aggregate",
        "mean / denominators.horizon if", "mean if", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "denominator of each micro-batch", "grpo", "runtime.engine.engine:Engine.train_mini_batch",
        "part = loss(outputs, micro_batch, denominators)",
        "part = loss(outputs, micro_batch, self._denominators(micro_batch, loss.horizon))", "update_actor", _ACTOR,
    ),
    _shared(
        "clip range swapped", "ppo", "shared_algos.policy_losses.config:PolicyLossConfig.clip_range",
        "1 - low, 1 + high", "1 - high, 1 + low", "update_actor", _ACTOR,
    ),
    _shared(
        "clipping dropped", "ppo", "shared_algos.policy_losses.vanilla:vanilla",
        "torch.maximum(plain, clipped)", "plain", "update_actor", _ACTOR,
    ),
    _shared(
        "advantages of the other sign", "grpo", "runtime.engine.losses:ActorLoss._inputs",
        'advantages=batch["advantages"]', 'advantages=-batch["advantages"]', "update_actor",
        ("actor/loss", "actor/grad_norm", "actor/pg_loss"),
    ),
    _shared(
        "stale log-probs taken for new ones", "ppo", "runtime.engine.losses:ActorLoss._inputs",
        'old_log_probs=batch["old_log_probs"]', 'old_log_probs=outputs["log_probs"].detach()', "update_actor", _ACTOR,
    ),
    _shared(
        "KL dropped from the loss", "kl", "runtime.engine.losses:ActorLoss.__call__",
        "loss = loss + self._kl_coef * kl", "pass", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "KL of the other direction", "kl", "shared_algos.kl:_estimate",
        "reverse = (-log_ratio)", "reverse = log_ratio", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "entropy bonus as a penalty", "kl", "runtime.engine.losses:ActorLoss.__call__",
        "loss - self._entropy_coeff", "loss + self._entropy_coeff", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "weights of the rollout ignored", "kl", "runtime.engine.losses:ActorLoss._inputs",
        'batch.columns.get("rollout_is_weights")', "None", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "twice the value loss", "ppo", "shared_algos.value_loss:compute_value_loss",
        "0.5 * torch.maximum", "1.0 * torch.maximum", "update_critic", _CRITIC,
    ),
    _shared(
        "value clipping dropped", "ppo", "shared_algos.value_loss:compute_value_loss",
        "torch.maximum(plain_error, clipped_error)", "plain_error", "update_critic", _CRITIC,
    ),
    # Updates.
    _shared(
        "an epoch too many", "grpo", "runtime.engine.engine:Engine.train",
        "in range(epochs)", "in range(epochs + 1)", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "every epoch shuffled alike", "kl", "runtime.engine.engine:_row_order",
        "mixed_seed(seed, epoch)", "mixed_seed(seed)", "update_actor", _ACTOR_EPOCHS,
    ),
    _shared(
        "gradient not clipped", "grpo", "runtime.engine.optim:clip_and_step",
        "(parameters, max_norm)", "(parameters, 1e9)", "update_actor", _CLIPPED,
    ),
    _shared(
        "schedule off by one", "kl", "runtime.engine.engine:Engine.lr_step",
        "self.schedule.step()", "self.schedule.step(); self.schedule.step()", "update_actor", ("actor/lr",),
    ),
    _shared(
        "draws of another step", "pf_ppo", "runtime.pf_ppo:Resampling.drawn_rows",
        "mixed_seed(self.seed, step)", "mixed_seed(self.seed, step + 1)", "resample", ("row_order",),
    ),
    # Rollout.
    _shared(
        "seed off by one", "grpo", "runtime.identity:PromptIdentity.request_seed",
        "(*self, session_id, turn)", "(*self, session_id + 1, turn)", "rollout", ("response_lengths", "responses"),
    ),
    _shared(
        "one seed for all sessions", "grpo", "runtime.identity:PromptIdentity.request_seed",
        "(*self, session_id, turn)", "(*self, turn)", "rollout", ("response_lengths", "responses"),
    ),
    _shared(
        "counter of a draw off by one", "grpo", "runtime.rollout.sampler:uniform",
        "counter=position)", "counter=position + 1)", "rollout", ("response_lengths", "responses"),
    ),
    _shared(
        "reward on the first token", "grpo", "runtime.trajectories:outcome_scores",
        "responses.offsets[1:] - 1", "responses.offsets[:-1]", "rollout", ("rm_scores",),
    ),
    _shared(
        "reward over the wrong length", "grpo", "runtime.tiny:letters_score",
        "max(1, len(solution_str))", "max(1, len(ground_truth))", "rollout", ("rm_scores",),
    ),
)  # fmt: skip

LEGACY = tuple(
    Mutant(name, "legacy", target, old, new, stage, fields, setting)
    for name, setting, target, old, new, stage, fields in (
        (
            "rows swapped on their way back", "ppo", "legacy.trainer:LegacyTrainer.old_log_prob",
            "return batch.union(scored)", "return batch.union(scored.select_idxs(torch.arange(len(scored)).flip(0)))",
            "old_log_prob", _LOG_PROBS,
        ),
        (
            "values shifted by a token", "ppo", "legacy.trainer:LegacyTrainer._compute_values",
            "self._critic().compute_values(batch)",
            'DataProto.from_dict({"values": self._critic().compute_values(batch)["values"].roll(1, -1)})',
            "values", ("values",),
        ),
        (
            "KL coefficient dropped", "kl", "legacy.trainer:LegacyTrainer.advantage",
            "(trajectories, self.kl_controller.value)", "(trajectories, 0.0)", "advantage", ("token_level_rewards",),
        ),
        (
            "mask not taken back", "kl", "legacy.trainer:LegacyTrainer.advantage",
            "answer(batch, trajectories, columns)",
            'answer(batch, trajectories, {**columns, "response_mask": trajectories["response_mask"]})',
            "advantage", ("response_mask",),
        ),
        (
            "scores of zero", "ppo", "legacy.trainer:LegacyTrainer.reward",
            "rewarded.columns, rewarded.objects",
            '{**rewarded.columns, "token_level_scores": 0 * rewarded.columns["token_level_scores"]}, rewarded.objects',
            "reward", ("token_level_scores",),
        ),
        (
            "step of the shuffle off by one", "kl", "legacy.trainer:LegacyTrainer._update_actor",
            '["global_steps"] = self.global_steps', '["global_steps"] = self.global_steps + 1',
            "update_actor", _ACTOR_EPOCHS,
        ),
        (
            "balanced by generated tokens", "ppo", "legacy.trainer:LegacyTrainer.balance",
            'batch["attention_mask"]', 'batch["response_mask"]', "balance", ("row_order",),
        ),
        (
            "draws of another step in legacy", "pf_ppo", "legacy.trainer:LegacyTrainer.drawn_rows",
            "self.global_steps)", "self.global_steps + 1)", "resample", ("row_order",),
        ),
        (
            "wrong rank's shard", "ppo", "legacy.dispatch:_order",
            "rank_order(rows, size if rows % size == 0 else rows, group.world_size)", "torch.arange(rows)",
            "update_critic", _CRITIC,
        ),
        (
            "positions count from one", "ppo", "compat.padding:position_ids_of",
            "attention_mask.cumsum(dim=-1) - 1", "attention_mask.cumsum(dim=-1)", "rollout", ("position_ids",),
        ),
        (
            "sessions under one key", "ppo", "compat.trajectories:key_columns",
            "[key.session_id for key in keys]", "[0 for key in keys]", "rollout", ("keys",),
        ),
        (
            "temperature not applied by legacy", "ppo", "runtime.workers.model_workers:ModelWorker._temperature",
            "float(rollout.temperature) if", "1.0 if", "old_log_prob", _LOG_PROBS,
        ),
        (
            "advantages and returns exchanged", "ppo", "runtime.advantage:AdvantageStage.__call__",
            '"advantages": outputs.advantages, "returns": outputs.returns',
            '"advantages": outputs.returns, "returns": outputs.advantages', "advantage", _ADVANTAGES,
        ),
    )
)  # fmt: skip

V1 = tuple(
    Mutant(name, "v1", target, old, new, stage, fields, setting)
    for name, setting, target, old, new, stage, fields in (
        (
            "KL coefficient lost on the way", "kl", "v1.data_worker:DataWorker.compute_advantage",
            'batch.extra_info["kl_coef"]', "0.0", "advantage", ("token_level_rewards",),
        ),
        (
            "mask of ones", "ppo", "v1.data_worker:DataWorker.compute_advantage",
            "self.advantage_stage(trajectories,",
            'self.advantage_stage(trajectories.with_columns({"response_mask": trajectories["response_mask"] * 0 + 1}),',
            "advantage", ("response_mask",),
        ),
        (
            "scores lost", "ppo", "v1.data_worker:DataWorker.compute_rewards",
            "rewarded.columns, rewarded.objects",
            '{**rewarded.columns, "token_level_scores": 0 * rewarded.columns["token_level_scores"]}, rewarded.objects',
            "reward", ("token_level_scores",),
        ),
        (
            "tokens shifted in a jagged column", "ppo", "v1.data_plane:_as_field",
            "jagged(values, ", "jagged(values.roll(1, 0), ", "rollout", ("prompts",),
        ),
        (
            "dense instead of jagged", "ppo", "v1.data_plane:_as_field",
            "jagged(values, batch.segments_of(level))", "jagged(values, batch.segments_of(level)).to_padded_tensor(0)",
            "rollout", ("refused",),
        ),
        (
            "a lost key", "ppo", "v1.replay_buffer:ReplayBuffer._materialize",
            "[str(key) for key in keys]", "[str(key) for key in keys[:-1]]", "rollout", ("keys",),
        ),
        (
            "a key twice", "ppo", "v1.replay_buffer:ReplayBuffer._materialize",
            "[str(key) for key in keys]", "[str(key) for key in [*keys[:-1], keys[0]]]", "rollout", ("refused",),
        ),
        (
            "sessions swapped", "ppo", "v1.agent_loop:put_sessions",
            "enumerate(sessions)", "enumerate(sessions[::-1])", "rollout",
            ("response_lengths", "prompt_lengths", "prompts"),
        ),
        (
            "balanced by responses", "ppo", "v1.trainer:V1Trainer.balance",
            'tag["seq_len"]', 'tag["response_len"]', "balance", ("row_order",),
        ),
        (
            "rank order left out", "ppo", "v1.trainer:V1Trainer._update",
            "self.rank_order(role, len(batch))", "None", "update_critic", _CRITIC,
        ),
        (
            "rows in the order of their draws", "pf_ppo", "v1.data_worker:DataWorker.drawn_rows",
            "resampling.drawn_rows(data_plane.read(batch, resampling.reads), step)",
            "sorted(resampling.drawn_rows(data_plane.read(batch, resampling.reads), step))[::-1]",
            "resample", ("row_order",),
        ),
        (
            "seed of another step", "kl", "v1.trainer:V1Trainer._update",
            "step=self.global_steps", "step=self.global_steps + 1", "update_actor", _ACTOR_EPOCHS,
        ),
        (
            "policy taken for the reference", "kl", "runtime.workers.model_workers:ActorWorker.compute_ref_log_prob",
            "self._infer(self.reference,", "self._infer(self.engine,", "ref_log_prob", ("ref_log_prob",),
        ),
        (
            "an epoch too many in V1", "grpo", "runtime.workers.model_workers:ModelWorker._update",
            "epochs=plan.epochs", "epochs=plan.epochs + 1", "update_actor",
            _ACTOR_EPOCHS,
        ),
        (
            "values and returns exchanged", "ppo", "runtime.engine.losses:CriticLoss.__call__",
            'returns=batch["returns"]', 'returns=batch["values"]', "update_critic", _CRITIC,
        ),
        (
            "reward on the first token in V1", "ppo", "runtime.trajectories:outcome_scores",
            "responses.offsets[1:] - 1", "responses.offsets[:-1]", "rollout", ("rm_scores",),
        ),
    )
)  # fmt: skip

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for mutant in (*SHARED, *LEGACY, *V1)}
"""By name."""
