"""``RewardModelWorker``: a sequence classifier that scores whole answers, as verl's worker of that name."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from transformers import AutoModelForTokenClassification

from compat.protocol import DataProto
from compat.single_controller.decorator import Dispatch, register
from compat.single_controller.worker import Worker
from runtime.errors import ConfigError
from runtime.fs import local_model


class RewardModelWorker(Worker):
    """One replica of a reward model; rows are shared out among the ranks.

    config: ``config.reward_model`` as verl's recipes give it: ``model.path`` names a token classifier with one label,
    whose output at the last token is the score. Raises ``ConfigError`` for a ``model.input_tokenizer`` that is not the
    policy's: answers are scored in the tokens of the policy.
    """

    def __init__(self, config: DictConfig, **_unused: Any) -> None:
        super().__init__()
        self.config = config
        policy = OmegaConf.select(config._get_root(), "actor_rollout_ref.model.path")
        # verl's default names the policy's folder.
        if config.model.get("input_tokenizer") not in (None, policy):
            raise ConfigError(
                "reward_model.model.input_tokenizer: answers are not translated into another chat template; take a "
                "reward model with the policy's tokenizer, and leave it null"
            )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the model."""
        self.model = AutoModelForTokenClassification.from_pretrained(
            local_model(self.config.model.path),
            num_labels=1,
            dtype=torch.float32,
            trust_remote_code=bool(self.config.model.get("trust_remote_code", False)),
        ).eval()
        if torch.cuda.is_available():
            self.model.cuda()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @torch.no_grad()
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """``rm_scores`` ``[B, R]``: each answer's score on its last token, 0 elsewhere.

        data: ``input_ids``, ``attention_mask`` ``[B, P+R]`` and ``responses`` ``[B, R]``.
        """
        width = data["responses"].shape[1]
        mask = data["attention_mask"].bool()
        scores = torch.zeros(data["responses"].shape, dtype=torch.float32)
        last = mask[:, -width:].sum(1) - 1
        for row, ids in enumerate(data["input_ids"]):
            scores[row, last[row]] = self._score(ids[mask[row]])
        return DataProto.from_dict({"rm_scores": scores})

    def _score(self, ids: Tensor) -> Tensor:
        """The output at the last of ``ids [L]``; rows go one by one, so that none depends on another."""
        logits = self.model(input_ids=ids[None].to(self.model.device)).logits
        return logits[0, -1, 0].float().cpu()
