"""`gristmill ablate`: does this data make a better model? Arms against a control, each trained with several seeds, and
a verdict (docs/ablations.md)."""
