"""What the package knows of each robot: names, limits, units, image layout. NumPy only."""
