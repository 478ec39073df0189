"""State captured and put back in place."""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_mllog.errors import WarmupError
from primus_mllog.settings import PretrainSettings
from primus_mllog.warmup import TrainingStateSnapshot, run_warmup
from primus_mllog.warmup.synthetic_data import gpt_batches, packed_batches


def draw() -> list[float]:
    """What the generators give next."""
    return [
        random.random(),  # noqa: S311
        float(np.random.rand()),  # noqa: NPY002 - the one that frameworks seed
        torch.rand(()).item(),
    ]


@pytest.mark.fault("X1")
def test_generators_go_on_from_where_they_were() -> None:
    """Python's, NumPy's and torch's."""
    snapshot = TrainingStateSnapshot([])
    first = draw()
    draw()
    snapshot.restore()
    assert draw() == first


@pytest.mark.fault("X1")
@pytest.mark.parametrize("kind", ["tensor", "generator"])
def test_megatrons_tracker_goes_on_from_where_it_was(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its states are tensors that it replaces, or generators where CUDA graphs need them."""
    generator = torch.Generator().manual_seed(4)
    states: dict[str, Any] = {"dropout": generator}
    if kind == "tensor":
        states = {"dropout": generator.get_state()}
    module = types.ModuleType("megatron.core.tensor_parallel.random")
    module.get_cuda_rng_tracker = lambda: types.SimpleNamespace(states_=states)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def use() -> float:
        """As the tracker's fork does."""
        own = torch.Generator()
        own = states["dropout"] if kind == "generator" else own
        if kind == "tensor":
            own.set_state(states["dropout"])
        number = torch.rand((), generator=own).item()
        if kind == "tensor":
            states["dropout"] = own.get_state()
        return number

    snapshot = TrainingStateSnapshot([])
    first = use()
    states["experts"] = states["dropout"]
    snapshot.restore()
    assert use() == first
    assert list(states) == ["dropout"]


class FusedAdam(torch.optim.SGD):
    """Stands for the fused Adams: the step is counted in the group, where it appears."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg"].lerp_(parameter.grad, 0.1)
                parameter.data.sub_(state["exp_avg"] * group["lr"] / (1 - 0.9 ** group["step"]))


OPTIMIZERS: dict[str, Any] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "Adagrad": torch.optim.Adagrad,
    "fused Adam": lambda p: FusedAdam(p, lr=0.1),
}


class Training:
    """A model with batch statistics and dropout, and its optimizer."""

    def __init__(self, make: Any) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    def step(self, fails_in: str = "") -> list[float]:
        self.optimizer.zero_grad()
        if fails_in == "forward":
            raise RuntimeError(fails_in)
        loss = self.model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if fails_in == "backward":
            raise RuntimeError(fails_in)
        self.optimizer.step()
        if fails_in == "optimizer":
            raise RuntimeError(fails_in)
        self.scheduler.step()
        return [loss.item(), *self.model[0].weight.flatten().tolist()]

    def warm_up(self, step: Any = None, **chosen: Any) -> None:
        run_warmup(
            PretrainSettings(synth_warmup_verify=True, **chosen),
            model=[self.model],
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            train_step=step or (lambda _: self.step()),
        )

    def digest(self) -> dict[str, str]:
        return TrainingStateSnapshot([self.model], self.optimizer, self.scheduler).digest()


@pytest.mark.fault("X2")
@pytest.mark.fault("X3")
@pytest.mark.fault("X5")
@pytest.mark.parametrize("num_steps_before", [0, 2])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_training_after_a_warmup_is_the_one_without(make: Any, num_steps_before: int) -> None:
    """For optimizers of every kind, fresh or with state, with statistics and dropout."""
    outcomes = []
    for num_warmup_steps in (0, 1, 5):
        training = Training(make)
        before = [training.step() for _ in range(num_steps_before)]
        training.warm_up(synth_warmup_steps=num_warmup_steps)
        after = [training.step() for _ in range(10)]
        outcomes.append((before, after, training.digest()))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.fault("X4")
@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_a_step_that_raises_leaves_nothing_behind(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """State is what it was, the error goes up unchanged, and the way out is said."""
    training = Training(torch.optim.AdamW)
    training.step()
    before = training.digest()

    def step(index: int) -> None:
        training.step(fails_in=place if index == 1 else "")

    with pytest.raises(RuntimeError, match=place):
        training.warm_up(step)
    assert training.digest() == before
    assert "SYNTH_WARMUP_STEPS=0 trains without" in capsys.readouterr().err


@pytest.mark.fault("X3")
def test_what_hangs_on_modules_is_state_too() -> None:
    """Tensors that are no buffers, counters, lists, and objects that hold tensors."""
    module = torch.nn.Module()
    module.register_buffer("bias", torch.ones(2))
    module.tokens, module.num_calls, module.history = torch.ones(2), 0, [torch.ones(1)]
    module.quantizer = types.SimpleNamespace(scale=torch.ones(1), name="x")
    alias = module.bias
    snapshot = TrainingStateSnapshot([module])
    module.bias.data = module.bias.double()  # as Megatron does with a router's expert bias
    module.tokens = torch.zeros(3)
    module.num_calls += 1
    module.history[0] += 1
    module.history.append(torch.ones(1))
    module.quantizer.scale += 1
    module.quantizer.name = "y"
    module.cache = torch.ones(4)
    snapshot.restore()
    assert module.bias is alias
    assert module.bias.dtype == torch.float32
    assert module.tokens.tolist() == [1.0, 1.0]
    assert (module.num_calls, module.history) == (0, [torch.ones(1)])
    assert (module.quantizer.scale.item(), module.quantizer.name) == (1.0, "x")
    assert not hasattr(module, "cache")


@pytest.mark.fault("X3")
def test_gradients_go_back_to_what_they_were() -> None:
    """None where there was none, and what was accumulated where there was."""
    linear = torch.nn.Linear(2, 2)
    linear.weight.grad = torch.full((2, 2), 3.0)
    snapshot = TrainingStateSnapshot([linear])
    linear(torch.ones(1, 2)).sum().backward()
    snapshot.restore()
    assert linear.bias.grad is None
    assert linear.weight.grad.eq(3.0).all()


@pytest.mark.fault("X3")
def test_a_loss_scale_that_is_replaced_is_put_back() -> None:
    """Megatron's scaler keeps its scale in a tensor that it replaces, and counts beside it."""
    scaler = types.SimpleNamespace(_scale=torch.tensor([64.0]), _growth_tracker=3)
    optimizer = types.SimpleNamespace(grad_scaler=scaler, optimizer=None)
    snapshot = TrainingStateSnapshot([], optimizer)
    scale = scaler._scale
    scaler._scale, scaler._growth_tracker = scale / 2, 0
    snapshot.restore()
    assert scaler._scale is scale
    assert (scale.item(), scaler._growth_tracker) == (64.0, 3)


@pytest.mark.fault("X9")
def test_addresses_stay_and_shared_memory_is_copied_once() -> None:
    """Parameters that are views of one buffer cost its bytes, zeros cost none."""
    buffer = torch.arange(1.0, 13.0)
    module = torch.nn.Module()
    module.first = torch.nn.Parameter(buffer[:4].view(2, 2))
    module.second = torch.nn.Parameter(buffer[4:])
    module.grads = torch.zeros(1 << 20)
    snapshot = TrainingStateSnapshot([module])
    assert snapshot.num_bytes == buffer.nbytes
    address = module.first.data_ptr()
    with torch.no_grad():
        module.first.zero_()
        module.second += 1
        module.grads += 1
    snapshot.restore()
    assert module.first.data_ptr() == address
    assert buffer.tolist() == list(range(1, 13))
    assert not module.grads.any()


class Quantised(torch.Tensor):
    """Stands for Transformer Engine's Float8Tensor: the bytes lie in tensors inside."""

    @staticmethod
    def __new__(cls: Any, data: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data.to(torch.float8_e4m3fn)
        self._scale_inv = torch.ones(1)
        self._transpose: Any = None

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


def test_quantised_parameters_keep_their_bits() -> None:
    """The tensors inside are restored as they are, and a cache that is new is dropped."""
    module = torch.nn.Module()
    module.weight = Quantised(torch.tensor([1.0, 2.0]))
    snapshot = TrainingStateSnapshot([module])
    module.weight._data.copy_(torch.tensor([5.0, 6.0]))
    module.weight._scale_inv += 1
    module.weight._transpose = torch.ones(2)
    snapshot.restore()
    assert module.weight._data.float().tolist() == [1.0, 2.0]
    assert module.weight._scale_inv.item() == 1.0
    assert module.weight._transpose is None


def test_state_kept_on_a_class_is_put_back() -> None:
    """As Transformer Engine's older global managers keep it."""

    class Manager:
        buffers: dict[str, Any] = {}  # noqa: RUF012 - as there
        depth = 0

        @classmethod
        def enter(cls) -> None:
            cls.depth += 1

    snapshot = TrainingStateSnapshot([], also=[Manager])
    Manager.enter()
    Manager.buffers["forward"] = [torch.ones(1)]
    snapshot.restore()
    assert (Manager.depth, Manager.buffers) == (0, {})


@pytest.mark.fault("X11")
def test_evaluation_steps_are_taken() -> None:
    """As many as SYNTH_WARMUP_VALID_STEPS says, after the training steps."""
    taken: list[str] = []
    run_warmup(
        PretrainSettings(synth_warmup_steps=2, synth_warmup_valid_steps=3),
        model=[],
        train_step=lambda index: taken.append(f"train {index}"),
        evaluate=lambda count: taken.append(f"evaluate {count}"),
    )
    assert taken == ["train 0", "train 1", "evaluate 3"]


def test_no_steps_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both at 0 nothing is captured."""
    monkeypatch.setattr(TrainingStateSnapshot, "__init__", None)
    settings = PretrainSettings(synth_warmup_steps=0)
    run_warmup(settings, model=[], train_step=pytest.fail)


def test_what_is_left_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """SYNTH_WARMUP_VERIFY=1 is an error that names the first tensor."""
    training = Training(torch.optim.AdamW)
    monkeypatch.setattr(TrainingStateSnapshot, "restore", lambda _: None)
    with pytest.raises(WarmupError, match=r"first of all model\[0\]\.0\._parameters\.weight"):
        training.warm_up()


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
TENSORS = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(torch.tensor)
TREES = st.recursive(
    st.one_of(VALUES, TENSORS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def scramble(item: Any, data: st.DataObject) -> None:
    """Change a tree in place, in any way that leaves its root what it is."""
    entries = item if isinstance(item, dict) else dict(enumerate(item))
    for key, value in list(entries.items()):
        change = data.draw(st.sampled_from(["keep", "replace", "inside"]))
        if isinstance(value, torch.Tensor) and change == "inside":
            value.add_(1)
        elif isinstance(value, (dict, list)) and change == "inside":
            scramble(value, data)
        elif change == "replace":
            item[key] = data.draw(TREES)
    if isinstance(item, list) and data.draw(st.booleans()):
        item.append(data.draw(TREES))
    elif isinstance(item, dict):
        if item and data.draw(st.booleans()):
            del item[next(iter(item))]
        item["new"] = data.draw(TREES)


def frozen(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return ("tensor", item.data_ptr(), item.tolist())
    if isinstance(item, dict):
        return {key: frozen(value) for key, value in item.items()}
    if isinstance(item, list):
        return [frozen(value) for value in item]
    return item


@pytest.mark.fault("X3")
@settings(deadline=None)
@given(tree=st.dictionaries(st.text(max_size=3), TREES, max_size=4), data=st.data())
def test_whatever_happens_to_a_tree_it_is_put_back(tree: dict[str, Any], data: Any) -> None:
    """Values, tensors and containers, changed, replaced, added and removed."""
    before = frozen(tree)
    snapshot = TrainingStateSnapshot([], also=[tree])
    scramble(tree, data)
    snapshot.restore()
    assert frozen(tree) == before


@pytest.mark.fault("X10")
def test_synthetic_batches_have_the_shape_of_real_ones() -> None:
    """Tokens, labels one further, masks and positions; the process's generators are not used."""
    state = torch.get_rng_state()
    batch = next(gpt_batches(micro_batch_size=3, seq_length=8, vocab_size=10, attention_mask=True))
    assert torch.equal(torch.get_rng_state(), state)
    found = {name: (tuple(value.shape), value.dtype) for name, value in batch.items()}
    assert found == {
        "tokens": ((3, 8), torch.int64),
        "labels": ((3, 8), torch.int64),
        "loss_mask": ((3, 8), torch.float32),
        "position_ids": ((3, 8), torch.int64),
        "attention_mask": ((3, 1, 8, 8), torch.bool),
    }
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    assert batch["tokens"].max() < 10


def test_packed_batches_say_where_sequences_begin() -> None:
    """Boundaries end at the row's end and a padding of -1; positions start again in each."""
    batch = next(packed_batches(micro_batch_size=1, seq_length=10, vocab_size=9, num_sequences=3))
    assert batch["cu_seqlens"].tolist() == [[0, 4, 8, 10, -1]]
    assert batch["cu_seqlens_argmin"].tolist() == [[4]]
    assert batch["max_seqlen"].tolist() == [[4]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1]]
