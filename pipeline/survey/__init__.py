"""A look at the signals that a leg's rules decide on: what the report's histograms, sliders and samples of what stays
are made of.

From outside: `survey`, `records`, `thresholds`.
"""
