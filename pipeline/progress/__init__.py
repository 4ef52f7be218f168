"""Progress: what a run shows while it works, and what its folder says before it has ended.

From outside: `progress`, `progress_file`, `so_far`, `facts`; for the time left, `events`, `usual`, `time_left`.
"""
