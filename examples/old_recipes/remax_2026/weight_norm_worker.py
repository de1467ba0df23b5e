"""A worker of the recipe's own: it counts its updates and tells the norm of the prompt batch it last trained on."""

import torch
from verl import DataProto
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.fsdp_workers import ActorRolloutRefWorker


class CountingWorker(ActorRolloutRefWorker):
    def __init__(self, config, role, **kwargs):
        super().__init__(config, role, **kwargs)
        self.updates_seen = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count_update(self, rows: int):
        self.updates_seen += rows
        return {"rank": self.rank, "world_size": self.world_size, "rows": self.updates_seen}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def response_lengths(self, data: DataProto) -> DataProto:
        width = data.batch["responses"].shape[1]
        lengths = data.batch["attention_mask"][:, -width:].sum(-1)
        return DataProto.from_dict(tensors={"response_length": lengths.to(torch.int64)})
