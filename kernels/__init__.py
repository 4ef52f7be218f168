"""Hot loops over arrays, each beside the plain reference that it must equal."""
