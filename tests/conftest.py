"""Settings of all tests."""

from hypothesis import settings

# A kernel's first call compiles it; that says nothing of the example.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
