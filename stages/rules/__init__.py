"""Published quality filters, one family a file: their settings are documentation, their verdicts name reasons."""
