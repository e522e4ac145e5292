"""Array backends: NumPy on the host, or any array-API library on its own device."""
