"""The ROS nodes: parameters in, messages out. What they decide stands in classes without ROS."""
