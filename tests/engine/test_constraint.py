"""Answers stay within their constraint, whatever the model would like to write."""
