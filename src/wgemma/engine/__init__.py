"""Running a model: sequences, passes, sampling, and what of the past can be used again."""
