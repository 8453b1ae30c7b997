"""trtbuild.yaml: one file that describes a deployment. Knows the fields, their defaults and their bounds."""

from trtbuild.spec.building import Engine, Hardware, Limits, ParallelSection, Speculative
from trtbuild.spec.deployment import Deployment, require_target
from trtbuild.spec.model import Model
from trtbuild.spec.quantization import Accuracy, Calibration, Quantization
from trtbuild.spec.reading import load, parse
from trtbuild.spec.running import KvCache, LlmApi, Lora, Scheduling
from trtbuild.spec.section import Section, replaced
from trtbuild.spec.serving import Serving

__all__ = [
    "Accuracy",
    "Calibration",
    "Deployment",
    "Engine",
    "Hardware",
    "KvCache",
    "Limits",
    "LlmApi",
    "Lora",
    "Model",
    "ParallelSection",
    "Quantization",
    "Scheduling",
    "Section",
    "Serving",
    "Speculative",
    "load",
    "parse",
    "replaced",
    "require_target",
]
