"""Environment variables that say how CUDA, TensorRT-LLM, MPI and Python are set up: what a bug report needs, and what trtllm-build may need.

Names are patterns as `fnmatch` has them. A name that means a secret is never among them (`redaction.is_secret`), nor is a value that holds one,
such as the URL of a mirror with a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from trtbuild.redaction import holds_secret, is_secret

#: Of NVIDIA's software, of libraries that compute and of Python. They name no people and no machines.
SETUP = (
    "CUDA_*", "CUBLAS*", "CUDNN_*", "CUTLASS_*", "NVIDIA_*", "NV_*", "NVTE_*", "NVCC_*", "TRT_*", "TENSORRT_*", "TRTLLM_*", "TLLM_*", "TRITON_*", "NCCL_*", "NVSHMEM_*", "UCX_*",
    "OMPI_COMM_WORLD_*", "OMPI_MCA_btl*", "OMPI_MCA_pml*", "OMPI_MCA_osc*", "OPAL_PREFIX", "PMIX_MCA_*", "SLURM_NTASKS*", "SLURM_NNODES", "SLURM_NPROCS", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_GPUS*", "SLURM_CPUS*", "SLURM_MEM*", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_*",
    "OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "MALLOC_*", "TORCH*", "PYTORCH_*", "FLASHINFER_*", "NUMBA_*", "TOKENIZERS_PARALLELISM", "MAX_JOBS",
    "HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_*",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "LD_*", "LIBRARY_PATH", "LANG", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME", "KUBERNETES_SERVICE_PORT",
)  # fmt: skip
#: What programs need besides, and a report does not: they name the user or the host.
PROCESS = (
    "HOME", "USER", "LOGNAME", "SHELL", "TERM", "HOSTNAME", "XDG_*", "OMPI_*", "OPAL_*", "PMIX_*", "PMI_*", "PRTE_*", "MPI*", "I_MPI_*", "HYDRA_*", "SLURM_*", "HWLOC_*",
    "FI_*", "IBV_*", "MLX5_*", "GLOO_*",
)  # fmt: skip


def pick(environment: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the variables that patterns name, without those whose name or value means a secret.

    Args:
        environment: variables.
        patterns: such as SETUP.
    """
    wanted = tuple(patterns)
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in wanted) and not is_secret(name) and not holds_secret(value)
    }
