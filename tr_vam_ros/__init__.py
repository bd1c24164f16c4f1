"""Video-action models with TR-adaptive guidance on a bimanual YAM robot (ROS 2)."""

# The generated `tr_vam_ros.msg` is installed elsewhere when the code runs from a checkout:
# one package, two folders.
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
__version__ = '0.1.0'
