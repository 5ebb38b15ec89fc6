"""The NumPy oracle: slow, short and obvious. Natively it is also the device of last resort."""
