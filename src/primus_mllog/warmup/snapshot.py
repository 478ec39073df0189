"""``TrainingStateSnapshot``: the state of a training, put back where it was, bit for bit.

A training's state is plain Python containers and tensors that hang from a few objects: modules,
optimizers, scheduler, counters. From each of these the snapshot walks through its attributes, and
on through dictionaries, lists and tuples, tensors, and objects that hold tensors themselves
(gradient buffers, loss scalers, quantizers). It need not know what any of them means, and so
misses no buffer that a release of Megatron or Transformer Engine adds.

* Of a tensor the bytes of its whole storage are copied, once, however many views share it:
  parameters and the buffer they are views of, main parameters, quantised parameters with their
  scales. They are restored into the same storage, so that addresses stay valid.
* Of a container the entries are remembered: values are put back, what was not there is removed.
* Storage that is all zeros (gradient buffers before the first step) is remembered as that.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import torch

from primus_mllog.warmup.generators import GeneratorStates

__all__ = ["TrainingStateSnapshot"]

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
# Optimizers start from zeros of these, and from no state at all, with the same bits.
_ADAM_STATE: Final = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}
# Attributes that lead from one optimizer to the next: Megatron's chained, wrapping, mixed-precision
# and offloading optimizers, and their loss scaler.
_OPTIMIZER_PARTS: Final = (
    "chained_optimizers",
    "optimizer",
    "cpu_optimizers",
    "gpu_optimizer",
    "grad_scaler",
)
_PROBE_BYTES: Final = 4096


class TrainingStateSnapshot:
    """State captured now, to be restored in place.

    Copies lie in host memory, pinned where the tensors are on an accelerator; an accelerator's
    memory is as before. What is absent (optimizer state before the first step) costs nothing.

    Args:
        model: the model's chunks.
        optimizer: Megatron's optimizer, or one of torch; None where there is none.
        scheduler: the learning-rate scheduler; None where there is none.
        also: other objects whose attributes, or mappings whose entries, are state: counters,
            trackers, arguments.
    """

    def __init__(
        self,
        model: Iterable[torch.nn.Module],
        optimizer: Any = None,
        scheduler: Any = None,
        also: Iterable[Any] = (),
    ) -> None:
        self._storages: dict[tuple[str, int], _Storage] = {}
        self._containers: dict[int, _Container] = {}
        # each with an alias of its memory, and its gradient
        self._tensors: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        self._seen: dict[int, Any] = {}  # keeps alive what ids stand for
        for index, chunk in enumerate(model):
            for name, module in chunk.named_modules():
                self._walk_object(f"model[{index}]" + (f".{name}" if name else ""), module)
        for index, part in enumerate(_optimizers(optimizer)):
            # parameters first: optimizer state is named after them
            for number, group in enumerate(getattr(part, "param_groups", ())):
                self._walk(f"optimizer[{index}].param_groups[{number}]", group)
            self._walk_object(f"optimizer[{index}]", part)
        self._walk_object("scheduler", scheduler)
        for index, item in enumerate(also):
            if isinstance(item, (dict, list)):
                self._walk(f"also[{index}]", item)
            else:
                self._walk_object(f"{getattr(item, '__name__', type(item).__name__)}", item)
        self._generators = GeneratorStates()
        if any(storage.is_on_device for storage in self._storages.values()):
            torch.cuda.synchronize()  # the copies are asynchronous

    @property
    def num_bytes(self) -> int:
        """Bytes copied to the host."""
        return sum(s.saved.numel() for s in self._storages.values() if s.saved is not None)

    def restore(self) -> None:
        """Put everything back, in place. May be called more than once."""
        with torch.no_grad():
            self._restore()

    def _restore(self) -> None:
        for container in self._containers.values():
            container.restore()
        for storage in self._storages.values():
            storage.restore()
        for tensor, content, grad in self._tensors:
            if not _is_same_memory(tensor, content):
                tensor.data = content  # given other memory, or another dtype, in between
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad
        self._generators.restore()
        if any(storage.is_on_device for storage in self._storages.values()):
            torch.cuda.synchronize()

    def digest(self) -> dict[str, str]:
        """A digest of every part of the captured state, by name.

        Zeros, and what is zero, false or empty, have the digest ``"zero"``, which is also what a
        name that is not there stands for: an Adam state of zeros and none are the same training.
        """
        parts = {storage.name: storage.digest() for storage in self._storages.values()}
        for container in self._containers.values():
            parts.update(container.digest())
        parts.update(self._generators.digest())
        return {name: digest for name, digest in parts.items() if digest != "zero"}

    # -- the walk ------------------------------------------------------------------------------

    def _walk_object(self, name: str, item: Any) -> None:
        if isinstance(item, type):
            self._walk(name, _ClassAttributes(item))
        elif hasattr(item, "__dict__"):
            self._walk(name, vars(item))

    def _walk(self, name: str, item: Any) -> None:
        if isinstance(item, _PLAIN) or id(item) in self._seen:
            return
        if isinstance(item, torch.Tensor):
            self._seen[id(item)] = item
            self._walk_tensor(name, item)
        elif isinstance(item, (dict, _ClassAttributes)):
            self._seen[id(item)] = item
            self._containers[id(item)] = _Mapping(name, item, dict(item))
            for key, value in item.items():
                self._walk(f"{name}.{self._key_name(key)}", value)
        elif isinstance(item, (list, tuple)):
            self._seen[id(item)] = item
            if isinstance(item, list):
                self._containers[id(item)] = _List(name, item, list(item))
            for index, value in enumerate(item):
                self._walk(f"{name}[{index}]", value)
        elif _holds_tensors(item):
            self._seen[id(item)] = item
            self._walk(name, vars(item))

    def _walk_tensor(self, name: str, tensor: torch.Tensor) -> None:
        key = _storage_key(tensor)
        if key is not None:
            if key not in self._storages:
                self._storages[key] = _Storage(name, tensor)
            grad = tensor.grad if tensor.is_leaf else None
            self._tensors.append((tensor, tensor.data, grad))
            if grad is not None:
                self._walk(f"{name}.grad", grad)
        # what is inside a quantised or distributed tensor, and what frameworks hang on parameters
        for attribute in getattr(tensor, "__tensor_flatten__", lambda: ((), None))()[0]:
            self._walk(f"{name}.{attribute}", getattr(tensor, attribute))
        if tensor.__dict__:
            self._walk(name, tensor.__dict__)

    def _key_name(self, key: Any) -> str:
        """A name for a key that stays the same; optimizer state is keyed by parameter."""
        if isinstance(key, torch.Tensor):
            storage = self._storages.get(_storage_key(key) or ("", 0))
            return f"{storage.name if storage else 'tensor'}+{key.storage_offset()}"
        return str(key)


@dataclasses.dataclass
class _Storage:
    """The bytes of one tensor storage; ``saved`` is None where they are all zero."""

    name: str
    tensor: dataclasses.InitVar[torch.Tensor]
    saved: torch.Tensor | None = None

    def __post_init__(self, tensor: torch.Tensor) -> None:
        self.untyped = tensor.untyped_storage()
        self.num_bytes = self.untyped.nbytes()
        self.is_on_device = tensor.device.type == "cuda"
        content = self._bytes()
        if not _is_zero(content):
            self.saved = torch.empty(
                self.num_bytes, dtype=torch.uint8, pin_memory=self.is_on_device
            )
            self.saved.copy_(content, non_blocking=True)

    def _bytes(self) -> torch.Tensor:
        content = torch.empty(0, dtype=torch.uint8, device=self.untyped.device)
        return content.set_(self.untyped)

    def restore(self) -> None:
        if self.untyped.nbytes() != self.num_bytes:
            return  # its owner gave the memory up (sharded parameters between steps)
        if self.saved is None:
            self._bytes().zero_()
        else:
            self._bytes().copy_(self.saved, non_blocking=True)

    def digest(self) -> str:
        if self.saved is None:
            return "zero"
        return hashlib.blake2b(self.saved.numpy(), digest_size=16).hexdigest()


class _Container:
    """The entries of a mapping or list; the container itself stays the same object."""

    def restore(self) -> None:
        raise NotImplementedError

    def digest(self) -> Iterator[tuple[str, str]]:
        raise NotImplementedError


@dataclasses.dataclass
class _Mapping(_Container):
    name: str
    mapping: MutableMapping[Any, Any]
    saved: dict[Any, Any]

    def restore(self) -> None:
        for key in [key for key in self.mapping if key not in self.saved]:
            # State of an Adam that was made in between is set to zeros rather than given back to
            # the allocator: the same training, and its memory is in place.
            if not (isinstance(key, torch.Tensor) and _made_zero(self.mapping[key])):
                del self.mapping[key]
        for key, value in self.saved.items():
            if key not in self.mapping or self.mapping[key] is not value:
                self.mapping[key] = value

    def digest(self) -> Iterator[tuple[str, str]]:
        for key, value in self.saved.items():
            if isinstance(value, _PLAIN):
                yield f"{self.name}.{key}", repr(value) if value else "zero"


@dataclasses.dataclass
class _List(_Container):
    name: str
    items: list[Any]
    saved: list[Any]

    def restore(self) -> None:
        if len(self.items) != len(self.saved) or any(
            now is not then for now, then in zip(self.items, self.saved, strict=True)
        ):
            self.items[:] = self.saved

    def digest(self) -> Iterator[tuple[str, str]]:
        for index, value in enumerate(self.saved):
            if isinstance(value, _PLAIN):
                yield f"{self.name}[{index}]", repr(value) if value else "zero"


class _ClassAttributes(MutableMapping[str, Any]):
    """The data among a class's attributes, for state that is kept on a class."""

    def __init__(self, owner: type) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        return vars(self._owner)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._owner, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, value in vars(self._owner).items() if _is_data(name, value)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _is_data(name: str, value: Any) -> bool:
    code = (types.FunctionType, classmethod, staticmethod, property)
    return not name.startswith("__") and not isinstance(value, code)


def _optimizers(optimizer: Any) -> Iterator[Any]:
    """The optimizer and those inside it, the innermost included, each once."""
    pending, seen = [optimizer], set()
    while pending:
        part = pending.pop(0)
        if part is None or id(part) in seen or not hasattr(part, "__dict__"):
            continue
        seen.add(id(part))
        yield part
        for name in _OPTIMIZER_PARTS:
            inner = vars(part).get(name)  # a property of that name may refuse to answer
            pending.extend(inner if isinstance(inner, (list, tuple)) else [inner])


def _holds_tensors(item: Any) -> bool:
    """Whether an object's own attributes are tensors: it is part of the state then."""
    if isinstance(item, (type, types.ModuleType, torch.nn.Module)):
        return False
    attributes: Mapping[str, Any] = getattr(item, "__dict__", {})
    return any(isinstance(value, torch.Tensor) for value in attributes.values())


def _storage_key(tensor: torch.Tensor) -> tuple[str, int] | None:
    """What tells one storage from another; None for tensors that have none of their own."""
    try:
        pointer = tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None
    return (str(tensor.device), pointer) if pointer else None


def _is_same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

    return layout(tensor) == layout(other)


def _is_zero(content: torch.Tensor) -> bool:
    """Whether all bytes are zero; most storage that is not shows it at its start."""
    if content.numel() == 0:
        return True
    if bool(content[:_PROBE_BYTES].any()):
        return False
    whole = content.numel() // 8 * 8
    return not bool(content[:whole].view(torch.int64).any()) and not bool(content[whole:].any())


def _made_zero(state: Any) -> bool:
    """Set the state of one parameter to what it is before the first step, if that is zeros."""
    if not isinstance(state, dict) or not state.keys() <= _ADAM_STATE:
        return False
    for value in state.values():
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            return False  # quantised: its scales lie elsewhere
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            value.zero_()
        else:
            state[key] = 0
    return True
