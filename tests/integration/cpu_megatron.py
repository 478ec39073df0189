"""The real Megatron-LM loop on a CPU under gloo: what stands in for the accelerator, and why.

``install()`` comes before the first megatron import, ``install_late()`` after it. Nothing that
trains is replaced: loop, schedules, optimizer, collectives and checkpoints are Megatron's own.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.machinery
import os
import sys
import types
import typing
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def install() -> None:
    """Make ``torch.cuda`` answer for the CPU."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # asserted with tensor parallelism
    if not hasattr(typing, "override"):  # Megatron from 0.19 on is written for Python 3.12
        typing.override = lambda method: method  # type: ignore[attr-defined]
    _stub_triton()
    torch.compile = lambda function=None, **_: function or (lambda f: f)  # type: ignore[assignment]
    _answer_for_cuda()
    _run_collectives_on_gloo()
    _EverythingOnCpu().__enter__()


def install_late() -> None:
    """Replace what only exists once megatron is imported."""
    import megatron.core.datasets.utils as datasets_utils

    datasets_utils.compile_helpers = lambda: None  # runs make; the wheel has them compiled
    with contextlib.suppress(ImportError):
        from megatron.core.transformer.moe import moe_utils

        # some releases leave the name unbound without Transformer Engine
        moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)


def finish() -> None:
    """Leave the process group in order: gloo's threads may abort the interpreter otherwise."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


class _EverythingOnCpu(TorchFunctionMode):
    """``device="cuda"``, a device index and ``.to("cuda")`` mean the CPU."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if func is torch.Tensor.to:
            args = (args[0], *(CPU if _is_cuda(a) else a for a in args[1:]))
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, int):
        return not isinstance(device, bool)
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


class _Stream:
    """A stream or event: on a CPU everything is in order already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...
    def record_event(self, *_: Any) -> Any:
        return self

    def elapsed_time(self, _other: Any) -> float:
        return 0.0

    def query(self) -> bool:
        return True

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def _answer_for_cuda() -> None:
    cuda: Any = torch.cuda
    generator = torch.default_generator
    properties = types.SimpleNamespace(
        name="cpu", major=8, minor=0, total_memory=1 << 34, multi_processor_count=1
    )
    answers = {
        "is_available": True,
        "device_count": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "current_device": CPU,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "mem_get_info": (1 << 33, 1 << 34),
        "get_device_properties": properties,
        "get_device_capability": (8, 0),
        "current_stream": _Stream(),
        "default_stream": _Stream(),
        "stream": contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, _answer=answer, **__: _answer)
    cuda.Stream = cuda.Event = _Stream
    # the accelerator's generator is the CPU's: Megatron's tracker saves and restores it
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: generator.get_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *_, **__: generator.set_state(
        state
    )
    cuda.manual_seed = generator.manual_seed
    cuda.default_generators = collections.defaultdict(lambda: generator)  # by any index
    cuda._lazy_call = lambda callback, **_: callback()  # else queued until a CUDA that never comes
    tensor_type = torch.Tensor.type

    def type_on_cuda(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # optimizers compare the name with "torch.cuda.FloatTensor"
        answer = tensor_type(tensor, *args, **kwargs)
        is_cpu_name = isinstance(answer, str) and "cuda" not in answer
        return answer.replace("torch.", "torch.cuda.", 1) if is_cpu_name else answer

    torch.Tensor.type = type_on_cuda  # type: ignore[assignment]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor.contiguous()  # type: ignore[assignment]
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[assignment]


def _run_collectives_on_gloo() -> None:
    init_process_group, all_to_all_single = dist.init_process_group, dist.all_to_all_single

    def init(
        backend: Any = None,
        *args: Any,
        device_id: Any = None,
        **kwargs: Any,
    ) -> Any:
        return init_process_group("gloo", *args, **kwargs)

    def all_to_all(output: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        # the expert dispatcher leaves split sizes as tensors where they are not on an accelerator
        args = tuple(_as_list(a) for a in args)
        return all_to_all_single(output, data, *args, **{k: _as_list(v) for k, v in kwargs.items()})

    dist.init_process_group, dist.all_to_all_single = init, all_to_all


def _as_list(sizes: Any) -> Any:
    return sizes.tolist() if hasattr(sizes, "tolist") else sizes


def _stub_triton() -> None:
    """Kernels are decorated at import and never launched."""
    try:
        import triton  # noqa: F401
    except ImportError:
        import torch.utils._triton

        torch.utils._triton.has_triton_package()  # cached as absent: torch does not use the stub
        for name in ("triton", "triton.language", "triton.language.extra.libdevice"):
            sys.modules[name] = _Triton(name)
        sys.modules["triton.language.extra"] = _Triton("triton.language.extra")


class _Triton(types.ModuleType):
    __path__: typing.ClassVar[list[str]] = []
    __version__ = "0.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)  # asked for by transformers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "language":
            return sys.modules["triton.language"]
        if name in {"jit", "autotune", "heuristics"}:
            return lambda *args, **_: args[0] if args and callable(args[0]) else (lambda f: f)
        if name == "next_power_of_2":
            return lambda n: 1 << (n - 1).bit_length()
        return type(name, (), {"__init__": lambda *_, **__: None})
