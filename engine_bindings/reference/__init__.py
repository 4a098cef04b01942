"""The embedded reference engine: a small GLM-shaped model in NumPy behind two stdio protocols."""
