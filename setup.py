"""For pip and editors. colcon builds the package from package.xml (ament_cmake)."""

from setuptools import find_packages, setup

setup(
    name='tr_vam_ros',
    version='0.1.0',
    description='Video-action models with TR-adaptive guidance on a bimanual YAM robot',
    license='Apache-2.0',
    python_requires='>=3.11',
    packages=find_packages(include=['tr_vam_ros', 'tr_vam_ros.*']),
    install_requires=[
        'torch>=2.6',
        'diffusers>=0.36',
        'peft>=0.15',
        'transformers>=4.50',
        'safetensors',
        'huggingface_hub',
        'numpy',
        'opencv-python>=4.8,<5',
        'PyYAML',
        'tyro',
        'rich',
        'av',
        'scipy',
        'mcap',
        'rosbags',
        'xacro',
    ],
    extras_require={'sim': ['mujoco>=3.1.6,<=3.3.7'], 'test': ['pytest', 'pytest-timeout', 'hypothesis']},
    entry_points={'console_scripts': ['tr-vam = tr_vam_ros.cli.main:main']},
)
