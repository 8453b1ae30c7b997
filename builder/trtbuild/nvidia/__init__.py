"""The GPUs of this machine, as nvidia-smi lists them and CUDA will see them; for reports, for building and for serving alike."""

from trtbuild.nvidia.gpus import Gpus, read_gpus
from trtbuild.nvidia.smi import Smi, SmiFailed, ask_nvidia_smi
from trtbuild.nvidia.visible import Device

__all__ = ["Device", "Gpus", "Smi", "SmiFailed", "ask_nvidia_smi", "read_gpus"]
