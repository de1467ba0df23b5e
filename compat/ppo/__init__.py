"""What recipes call of ``verl.trainer.ppo`` inside their own ``fit()``: adapters from padded batches onto the core."""
