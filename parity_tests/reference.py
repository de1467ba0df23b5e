"""A third opinion on a training step: plain PyTorch and transformers, one unpadded row at a time, without Ray.

Log-probs, advantages, losses, gradient clipping and AdamW are written out once more and share no line with trainers,
engine or algorithm core: what both trainers get wrong alike, because it is one code, shows against this.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from parity_tests.capture import Capture

Row = dict[str, Any]  # uid, tokens [1, S], before (where the token before each response token is), columns [R]


def reference_step(capture: Capture, folder: str, settings: dict[str, Any], step: int = 1) -> dict[str, torch.Tensor]:
    """Train one step from the weights in ``folder`` on the tokens, masks and scores that ``capture`` has of ``step``.

    settings: see ``reference_settings.settings_of``. Returns packed columns ``[T]`` in canonical order by field name,
    float64 series ``[mini-batches]`` by metric name, and the weights at the end as ``actor.NAME`` and ``critic.NAME``.
    """
    rows, estimator = read_rows(capture, step), {"gae": gae, "grpo": grpo}[settings["adv_estimator"]]
    models: dict[str, Any] = {"actor": AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()}
    models |= {"critic": value_model(folder, settings["seed"])} if estimator is gae else {}
    with torch.no_grad():
        for row in rows:
            row["old_log_probs"], row["entropy"] = log_probs(models["actor"], row, settings["temperature"])
            row |= {"values": values(models["critic"], row)} if estimator is gae else {}
    estimator(rows, settings)
    results = {name: torch.cat([row[name] for row in rows]) for name in rows[0].keys() - {"uid", "tokens", "before"}}
    orders = [capture.stage(step, s).series["row_order"] for s in ("balance", "resample") if s in capture.index[step]]
    for role, model in models.items():
        results |= train(role, model, [rows[int(place)] for place in [range(len(rows)), *orders][-1]], settings)
    return results


def read_rows(capture: Capture, step: int) -> list[Row]:
    """The captured trajectories in canonical order; their scores are their token rewards."""
    rollout, reward = capture.stage(step, "rollout"), capture.stage(step, "reward")
    tokens = rollout.read("input_ids").split((rollout.prompts.lengths + rollout.responses.lengths).tolist())
    sides = rollout.read("response_mask").bool(), reward.read("token_level_scores").double()
    columns = zip(rollout.keys, tokens, *map(rollout.responses.split, sides), strict=True)
    rows = [{"uid": key.uid, "tokens": ids[None], "mask": mask, "rewards": score} for key, ids, mask, score in columns]
    return [row | {"before": slice(-1 - len(row["mask"]), -1)} for row in rows]


def value_model(folder: str, seed: int) -> Any:
    """The critic before training: the body in ``folder`` under a new head, normal by ``seed`` with the config's std."""
    model: Any = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32).eval()
    std, draw = model.config.initializer_range, torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(model.score.weight, std=std, generator=draw)
    torch.nn.init.zeros_(model.score.bias)
    return model


def log_probs(policy: Any, row: Row, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each response token and entropy where it was drawn, ``[R]`` each."""
    log_p = (policy(row["tokens"]).logits[0, row["before"]] / temperature).log_softmax(-1)
    return log_p.gather(1, row["tokens"][0].roll(-1)[row["before"], None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def values(critic: Any, row: Row) -> torch.Tensor:
    """The value of the state in which each response token was drawn, ``[R]``."""
    return critic(row["tokens"]).logits[0, row["before"], 0]


def grpo(rows: list[Row], settings: dict[str, Any]) -> None:
    """Score less the mean of the rows of its uid, over their std (n-1); a row alone has mean 0 and std 1."""
    for row in rows:
        group = [other["rewards"].sum() for other in rows if other["uid"] == row["uid"] and other["mask"].any()]
        mean, std = (torch.stack(group).mean(), torch.stack(group).std()) if len(group) > 1 else (0.0, 1.0)
        scale = std + 1e-6 if settings["norm_adv_by_std_in_grpo"] else 1.0
        row["advantages"] = row["returns"] = (row["rewards"].sum() - mean) / scale * row["mask"]


def gae(rows: list[Row], settings: dict[str, Any]) -> None:
    """GAE over generated tokens, whitened over the batch; a reward on a masked token counts at the one before it."""
    for row in rows:
        value = row["values"][row["mask"]].double()
        rewards = torch.zeros_like(value).index_add(0, (row["mask"].cumsum(0) - 1).clamp(min=0), row["rewards"])
        errors = rewards + settings["gamma"] * torch.cat([value[1:], value.new_zeros(1)]) - value
        powers = value.new_tensor(settings["gamma"] * settings["lam"]) ** torch.arange(len(value))
        raw = value.new_tensor([float(errors[t:] @ powers[: len(value) - t]) for t in range(len(value))])
        for name, column in (("advantages", raw), ("returns", raw + value)):
            row[name] = torch.zeros_like(row["rewards"]).masked_scatter(row["mask"], column)
    every = torch.cat([row["advantages"][row["mask"]] for row in rows])
    for row in rows:
        row["advantages"] = (row["advantages"] - every.mean()) / (every.var() + 1e-8).sqrt() * row["mask"]


def token_loss(role: str, model: Any, row: Row, settings: dict[str, Any]) -> torch.Tensor:
    """PPO's clipped policy loss with the dual clip, or half the clipped squared error of the value, ``[R]``."""
    if role == "critic":
        new, old, target, reach = values(model, row), row["values"], row["returns"], settings["critic"]["clip"]
        return torch.maximum((new - target) ** 2, (new.clamp(old - reach, old + reach) - target) ** 2) / 2
    advantages, (low, high, dual) = row["advantages"], settings["actor"]["clip"]
    ratio = (log_probs(model, row, settings["temperature"])[0] - row["old_log_probs"]).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    return loss.where(advantages >= 0, loss.minimum(-advantages * dual))


def train(role: str, model: Any, rows: list[Row], settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """One AdamW update for each mini-batch of consecutive ``rows``, on the mean loss of its generated tokens."""
    own, series, weights = settings[role], [], dict(model.named_parameters())
    (b1, b2), moments = own["betas"], [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights.values()]
    for t, start in enumerate(list(range(0, len(rows), own["rows"])) * own["epochs"], 1):
        losses = [token_loss(role, model, row, settings)[row["mask"]] for row in rows[start : start + own["rows"]]]
        loss = torch.cat(losses).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = torch.cat([gradient.double().flatten() for gradient in gradients]).norm()
        series.append([loss.item(), norm.item()])
        for weight, gradient, (first, second) in zip(weights.values(), gradients, moments, strict=True):
            clipped = gradient * (own["grad_clip"] / (norm + 1e-6)).clamp(max=1)
            first.lerp_(clipped, 1 - b1)
            second.lerp_(clipped**2, 1 - b2)
            weight.data *= 1 - own["lr"] * own["weight_decay"]
            weight.data -= own["lr"] * first / (1 - b1**t) / ((second / (1 - b2**t)).sqrt() + own["eps"])
    figures = dict(zip((f"{role}/loss", f"{role}/grad_norm"), torch.tensor(series, dtype=torch.float64).T, strict=True))
    return figures | {f"{role}.{name}": weight.detach() for name, weight in weights.items()}
