"""Seeded defects: each replaces one rule of the right engine by a wrong one that was met in public."""
