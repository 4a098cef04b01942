"""The OpenAI-compatible reference server: single-slot MTP, and only on a certificate."""
