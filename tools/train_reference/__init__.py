"""How the shipped reference checkpoint is made (needs the ``train`` extra)."""
