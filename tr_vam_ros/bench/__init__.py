"""Speed and memory: ours against naive and against each optimisation switched off."""
