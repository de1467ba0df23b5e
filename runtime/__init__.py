"""What both trainers stand on: config, data, rollout, reward, engine, workers, tracking. Knows no batch container."""
