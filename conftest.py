"""Settings that hold for every test of the project."""

from hypothesis import HealthCheck, settings

# Examples are drawn from a fixed seed and have no deadline: a test says the same on a loaded machine.
settings.register_profile(
    "project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")
