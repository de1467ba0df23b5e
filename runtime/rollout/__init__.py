"""Generation: tokens in, tokens out, with the log-probs of the sampled tokens, behind one server for agent loops."""
