"""Ours and the peer, side by side in one run, as ratios: absolute times of a shared machine mean little."""
