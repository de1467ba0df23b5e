"""Every estimator, loss, aggregation, shape, split, rank count, layout, KL and dtype, each with each of the others."""
