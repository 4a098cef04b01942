"""The measuring side: it drives engines, records what they did, compares and judges."""
