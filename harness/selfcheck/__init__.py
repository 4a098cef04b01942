"""The gate held against faults that it must name: what is declared, what is drawn, and what came of it."""
