"""Safe execution of action chunks: checks, re-timing, one timeline, the state machine. No ROS."""
