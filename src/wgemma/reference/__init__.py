"""The NumPy oracle: slow, short and obvious. Natively it is also the fallback device."""
