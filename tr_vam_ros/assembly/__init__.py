"""Checkpoints made from public weights: a video model, an action expert, an adapter."""
