"""Running the model: sampling, sessions, and what of the past can be used again."""
