"""Renderers of one Report value; each is a function from the value to text."""
