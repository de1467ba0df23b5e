"""The training engine: FSDP2 over plain ``torch.distributed``. Knows neither Ray nor the trainers' containers."""
