"""Compiles the training step of a PyTorch module into a package that C++ trains without Python.

    from narrowcast_export import export

    export(Net(), example=(images, targets), loss="cross_entropy", path="net.pt2")

The package is one file (a PT2 archive). It contains two graphs that AOTInductor has compiled, `train` and `evaluate`, the
initial weights (narrowcast/weights.safetensors) and a manifest: JSON under the key "narrowcast" of the metadata of both
graphs. docs/reference/model-packages.md defines them. In short, both graphs take the tensors that manifest["state"] lists,
then inputs, then targets. manifest["graphs"][NAME]["outputs"] lists what they return: the loss, then the gradient of each
trained parameter and the new value of each buffer that may change (train), or the module's outputs (evaluate). The
training step calls the operator narrowcast::gradient_ready(gradient, parameter) as soon as a gradient is complete.

Every export runs both compiled graphs and compares them with eager PyTorch in float64 and float32. If they differ, it
raises ExportError and writes nothing.

This file needs torch 2.11 or newer, g++ 11 or newer and Python's headers, and nothing else. It can be copied.
"""
import contextlib
import copy
import ctypes
import hashlib
import inspect
import json
import logging
import os
import pathlib
import platform
import random
import sys
import sysconfig
import tempfile
import zipfile
from operator import getitem
from typing import Any, Callable, Iterator, Optional, Sequence, Union
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode

FORMAT = 1
LOSSES = ("cross_entropy", "mse", "bce_with_logits")
Loss = Union[None, str, Callable[[Tensor, Tensor], Tensor]]

_WEIGHTS = "narrowcast/weights.safetensors"
# The names of safetensors. narrowcast's reader of the weights accepts these dtypes.
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
           torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3", torch.int64: "I64", torch.int32: "I32",
           torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16",
           torch.uint8: "U8", torch.bool: "BOOL"}
_INPUT_DTYPES = (torch.float32, torch.uint8, torch.bool, torch.int64)
_TARGET_DTYPES = (torch.float32, torch.int64)
_OTHER_SIZES = (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 255, 256, 1000, 1024)
# Of gradients, relative to their norm. ReLUs at their edge may change so much.
_LARGEST_ROUNDING = 1e-2
_LEVELS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}
_TORCHSCRIPT = "or train the module with TorchScript: torch.jit.script(module).save(\"net.pt\")"
_LOSS_IN_FORWARD = "call it in the module's forward(inputs, targets), and give loss=None"
_log = logging.getLogger(__name__)


def _operator() -> Any:
    """narrowcast::gradient_ready, which narrowcast's C++ library defines as well. Here it only keeps its gradients in _heard."""
    def ready(gradient: Tensor, parameter: int) -> Tensor:
        if _heard is not None and not isinstance(gradient, FakeTensor):
            _heard[parameter] = gradient, gradient.clone()
        return gradient.new_empty(0)

    if not hasattr(torch.ops.narrowcast, "gradient_ready"):
        library = torch.library.Library("narrowcast", "FRAGMENT")
        library.define("gradient_ready(Tensor gradient, int parameter) -> Tensor")
        for key in ("CompositeExplicitAutograd", "Meta"):
            library.impl("gradient_ready", ready, key)
        _operator.library = library  # type: ignore[attr-defined]  # The definition ends with this object.
    return torch.ops.narrowcast.gradient_ready.default


_GRADIENT_READY = _operator()
# Of each parameter the gradient that was reported, and a copy of its value then. None: nothing is kept.
_heard: Optional[dict[int, tuple[Tensor, Tensor]]] = None


@contextlib.contextmanager
def _hearing() -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    global _heard
    _heard = {}
    try:
        yield _heard
    finally:
        _heard = None


class ExportError(Exception):
    """A module cannot be exported, or its package is not equal to it. The message contains the remedy."""


def export(module: nn.Module, example: tuple[Tensor, Tensor], loss: Loss = None, path: Union[str, os.PathLike] = "model.pt2",
           *, label_smoothing: float = 0.0, vocabulary: Optional[Sequence[str]] = None, max_batch: int = 65536,
           tolerance: float = 1e-5, instruction_set: Optional[str] = None, one_thread: bool = False) -> dict[str, Any]:
    """Writes the package `path` and returns its manifest. Takes from seconds to minutes.

    module: on the CPU, with float32 parameters. It is not changed.
    example: inputs and targets of one batch, both [batch, ...], of 2 samples or more. Inputs are float32, uint8, bool or
        int64, targets float32 or int64. The batch size of a training may differ, all other sizes may not.
    loss: "cross_entropy" of logits [batch, ..., classes], "mse" or "bce_with_logits", a function of outputs and targets,
        or None if module(inputs, targets) returns the loss.
    label_smoothing: of "cross_entropy" in the training step, at least 0 and below 1.
    vocabulary: the characters of a text model, in the order of their numbers.
    max_batch: the largest batch size of the package.
    tolerance: the largest difference from eager PyTorch, relative to the norm of the gradients. Rounding errors of deep
        networks with batch norm may need 1e-4.
    instruction_set: "AVX2" or "AVX512", by default the wider one of this processor.
    one_thread: compiles fused loops for one thread, which is a little faster there. By default they use the threads of the
        training. Matrix products do in any case.

    Raises ExportError if the module cannot be exported, or if the compiled graphs differ from eager PyTorch."""
    path = pathlib.Path(path)
    if path.suffix != ".pt2":
        raise ExportError(f"path: must end in .pt2, but is {path}")
    if not path.resolve().parent.is_dir():
        raise ExportError(f"path: the folder {path.resolve().parent} does not exist")
    step = _Step(module, example, loss, label_smoothing, max_batch)
    level = _instruction_set(instruction_set)
    _check_toolchain()
    from torch._dynamo import config as dynamo

    # Parts that torch.compile has compiled run as they are written.
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.compiler.set_stance("force_eager"), \
            dynamo.patch(error_on_nested_fx_trace=False):
        step.check_eager()
        graphs = {name: _trace(step, name) for name in ("train", "evaluate")}
        step.draws = _draws(graphs["train"])
        _check_vocabulary(step, graphs["evaluate"], vocabulary)
        manifest = _manifest(step, graphs, {"instruction_set": level or _native_instruction_set(),
                                            "threads": 1 if one_thread else None,
                                            "vocabulary": None if vocabulary is None else list(vocabulary)})
        # On the file system of the package, since it is renamed.
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.resolve().parent) as folder:
            parts = {name: pathlib.Path(folder) / f"{name}.pt2" for name in graphs}
            for name, part in parts.items():
                _compile(step, name, graphs[name], part, level, one_thread)
            # Symbols that the compiled code takes from the program.
            ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
            runs = {name: _runner(part, "model") for name, part in parts.items()}
            checked = _check(step, runs, manifest, tolerance)
            weights = _safetensors(step.state)
            manifest["weights"] = {"record": _WEIGHTS, "bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
            manifest["hash"] = _hash(manifest, graphs)
            manifest["checked"] = checked
            package = pathlib.Path(folder) / path.name
            _write(package, parts, manifest, weights)
            os.replace(package, path)
    return manifest


class _Step:
    """The computation of one step, as a function of tensors: the state, inputs and targets."""

    def __init__(self, module: nn.Module, example: tuple[Tensor, Tensor], loss: Loss, label_smoothing: float, max_batch: int):
        module = getattr(module, "_orig_mod", module)  # Of torch.compile.
        self.name = type(module).__name__
        self.loss, self.label_smoothing, self.max_batch = loss, label_smoothing, max_batch
        self.inputs, self.targets = self._checked_example(example)
        self._check_arguments(module)
        self._check_layers(module)
        try:
            self.first_loss = copy.deepcopy(self.loss)
        except Exception as error:
            raise ExportError(f"loss: cannot be copied: {_first_line(error)}; {_LOSS_IN_FORWARD}") from error
        parameters, everything = {id(each) for each in module.parameters()}, _named(module)
        persistent = module.state_dict(keep_vars=True).keys()
        # Of each tensor the first name, of those that state_dict() has if there are any.
        first: dict[int, str] = {}
        for name, tensor in everything.items():
            known = first.setdefault(id(tensor), name)
            if name in persistent and known not in persistent:
                first[id(tensor)] = name
        state = {name: everything[name] for name in first.values()}
        self.roles = {name: "buffer" if id(tensor) not in parameters else "trained" if tensor.requires_grad else "frozen"
                      for name, tensor in state.items()}
        self.persistent = {name: name in persistent for name in state if self.roles[name] == "buffer"}
        self.tied = {name: first[id(tensor)] for name, tensor in everything.items()
                     if first[id(tensor)] != name and name in persistent}
        self._check_state(state)
        try:
            self.module = copy.deepcopy(module)
        except Exception as error:
            raise self.fail(f"cannot be copied: {_first_line(error)}; assign no results of forward to its attributes") from error
        self._check_modes(module)
        self._check_averages()
        self.state = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        self.trained = [name for name, role in self.roles.items() if role == "trained"]
        self.buffers = [name for name, role in self.roles.items() if role == "buffer"]
        self.copied = self.module  # That a step or a trace runs, and may leave attributes in.
        self.changed: list[str] = self.buffers  # The buffers that the training step may change; fewer once it is traced.
        self.unused: set[str] = set()
        self.is_training = True
        self.draws = False  # Whether the training step draws random numbers.
        self.reused: set[str] = set()  # Parameters whose gradients' memory the compiled step uses for something else, too.
        self.heard: dict[int, tuple[Tensor, Tensor]] = {}  # Of the last run. It keeps the memory from the next run.
        self.signals: dict[str, Tensor] = {}  # Of the parameters in the order in which gradients become complete.

    def kind(self, name: str) -> str:
        return "buffer" if self.roles[name] == "buffer" else "parameter"

    def fail(self, reason: str) -> ExportError:
        return ExportError(f"{self.name}: {reason}")

    @staticmethod
    def _checked_example(example: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if not isinstance(example, (tuple, list)) or len(example) != 2 or not all(isinstance(each, Tensor) for each in example):
            raise ExportError("example: must be a pair of tensors, the inputs and the targets of one batch; if the module takes "
                              "more inputs, concatenate them into one tensor and split it in forward")
        for name, tensor, dtypes in zip(("inputs", "targets"), example, (_INPUT_DTYPES, _TARGET_DTYPES)):
            if tensor.device.type != "cpu":
                raise ExportError(f"example: the {name} are on {tensor.device}, but packages for GPUs are not supported; use "
                                  f"{name}.cpu()")
            if tensor.dtype not in dtypes:
                raise ExportError(f"example: the {name} are {tensor.dtype}, but must be one of "
                                  f"{', '.join(map(str, dtypes))}, which trainings read from data")
            if tensor.dim() < 1 or tensor.size(0) < 2:
                raise ExportError(f"example: the {name} have the shape {list(tensor.shape)}, but must have 2 samples or more")
        inputs, targets = (tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in example)
        if inputs.size(0) != targets.size(0):
            raise ExportError(f"example: has inputs of {inputs.size(0)} samples, but targets of {targets.size(0)}")
        return inputs, targets

    def _check_arguments(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise self.fail("is a TorchScript module; export the module of Python, or train it as it is with --model=net.pt")
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise ExportError(f"loss: must be {', '.join(LOSSES)}, a function or None, but is '{self.loss}'")
        if isinstance(self.loss, nn.Module) and any(each.requires_grad for each in self.loss.parameters()):
            raise ExportError(f"loss: has parameters, which would not be trained; {_LOSS_IN_FORWARD}")
        if self.loss == "cross_entropy" and not self.targets.is_floating_point() and int(self.targets.min()) < 0:
            raise ExportError(f"loss: \"cross_entropy\" takes no targets below 0, but the example has {int(self.targets.min())}; compute "
                              "the loss in the module's forward(inputs, targets), with ignore_index, and give loss=None")
        if self.label_smoothing and self.loss != "cross_entropy":
            raise ExportError("label_smoothing: needs loss=\"cross_entropy\"")
        if not 0 <= self.label_smoothing < 1:
            raise ExportError(f"label_smoothing: must be at least 0 and below 1, but is {self.label_smoothing}")
        if self.max_batch < self.inputs.size(0) + 1:
            raise ExportError(f"max_batch: must be above the example's batch of {self.inputs.size(0)}, but is {self.max_batch}")
        arguments, names = (2, "(inputs, targets)") if self.loss is None else (1, "(inputs)")
        try:
            inspect.signature(module.forward).bind(*range(arguments))
        except TypeError as error:
            returned = " and return the loss, since loss is None" if arguments == 2 else ""
            raise self.fail(f"its forward must take {names}{returned}, but is forward{inspect.signature(module.forward)}; wrap it "
                            "in a module whose forward does") from error

    def _check_layers(self, module: nn.Module) -> None:
        for name, tensor in _named(module).items():
            if is_lazy(tensor):
                raise self.fail(f"'{name}' has no shape before the first forward pass; call module(inputs) once before the export")
        for name, layer in module.named_modules():
            for hook in layer._forward_pre_hooks.values():
                if isinstance(hook, (WeightNorm, SpectralNorm)):
                    function = "weight_norm" if isinstance(hook, WeightNorm) else "spectral_norm"
                    raise self.fail(f"layer '{name}' has torch.nn.utils.{function}, which keeps its result in an attribute; use "
                                    f"torch.nn.utils.parametrizations.{function}")

    def _check_averages(self) -> None:
        for name, layer in self.module.train().named_modules():
            if isinstance(layer, _BatchNorm) and layer.training and layer.track_running_stats and layer.momentum is None:
                raise self.fail(f"layer '{name}' is a {type(layer).__name__} with momentum=None, whose code depends on the number of "
                                f"steps; give a momentum, such as 0.1, {_TORCHSCRIPT}")

    def _check_modes(self, module: nn.Module) -> None:
        """The graphs have the modes that train() and eval() set, as the steps of a training do."""
        def modes(of: nn.Module) -> list[bool]:
            return [each.training for each in of.modules()]

        if modes(module) not in (modes(self.module.eval()), modes(self.module.train())):
            raise self.fail("some of its layers are in evaluation mode and others are not, which train() undoes; to keep layers in "
                            "evaluation mode, override train() of the module; else call train() before the export")

    def _check_state(self, state: dict[str, Tensor]) -> None:
        storages: dict[int, str] = {}
        for name, tensor in state.items():
            kind = self.kind(name)
            if tensor.device.type != "cpu":
                raise self.fail(f"{kind} '{name}' is on {tensor.device}, but packages for GPUs are not supported; use "
                                "module.cpu()")
            if tensor.layout != torch.strided or tensor.dtype not in _DTYPES:
                raise self.fail(f"{kind} '{name}' is {tensor.dtype}, {tensor.layout}, which packages cannot hold; use dense, "
                                "real tensors, for example torch.view_as_real of a complex one")
            if self.roles[name] == "trained" and tensor.dtype != torch.float32:
                raise self.fail(f"parameter '{name}' is {tensor.dtype}, but must be float32 to be trained; use module.float()")
            if self.roles[name] == "trained" and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks):
                raise self.fail(f"parameter '{name}' has a gradient hook, which would not be exported; multiply in forward instead")
            storage = tensor.untyped_storage().data_ptr()
            if storage and storages.setdefault(storage, name) != name:
                raise self.fail(f"{kind} '{name}' shares the memory of '{storages[storage]}' without being the same tensor; assign "
                                "the same tensor to both, or a clone")
        if "trained" not in self.roles.values():
            count = sum(role != "buffer" for role in self.roles.values())
            raise self.fail(f"none of its {count} parameters requires a gradient: there is nothing to train")

    def values(self, call: Callable[..., Any], inputs: Tensor, targets: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """The loss, float32 [], and the outputs of `call`, the module or a function that calls it, if it returns any."""
        outputs = call(*((inputs, targets) if self.loss is None else (inputs,)))
        if not isinstance(outputs, Tensor) or outputs.dtype not in _DTYPES:
            shown = outputs.dtype if isinstance(outputs, Tensor) else type(outputs).__name__
            raise self.fail(f"its forward must return one real tensor, but returns {shown}; wrap it in a module whose forward "
                            "returns the tensor")
        if self.loss is None:
            loss, outputs = outputs, None
        elif callable(self.loss):
            loss = self.loss(outputs, targets)
        else:
            loss = self._loss_of(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            shown = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise self.fail(f"its loss must be one real number, the mean over the batch, but is {shown}")
        return loss.float().reshape(()), outputs

    def _loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As narrowcast-train computes it for TorchScript modules."""
        def long(sizes: Sequence[int]) -> list[int]:
            return [size for size in sizes if size != 1]

        if not outputs.is_floating_point() or outputs.dim() < 1:
            raise self.fail(f"its forward must return predictions, but returns {outputs.dtype} {list(outputs.shape)}")
        rows = outputs.shape[:-1] if self.loss == "cross_entropy" else outputs.shape
        if outputs.size(0) != targets.size(0) or long(rows[1:]) != long(targets.shape[1:]):
            wanted = "one row of logits per target, classes last" if self.loss == "cross_entropy" else "one number per target"
            raise self.fail(f"its forward must return {wanted}, but returns {list(outputs.shape)} for targets of shape "
                            f"{list(targets.shape)}")
        if self.loss == "cross_entropy":
            if targets.dtype != torch.int64:
                raise self.fail(f"cross_entropy needs int64 classes as targets, but the example has {targets.dtype}")
            smoothing = self.label_smoothing if self.is_training else 0.0
            return cross_entropy(outputs.flatten(0, -2).float(), targets.flatten(), label_smoothing=smoothing)
        targets = targets.float().reshape(outputs.shape)
        return (mse_loss if self.loss == "mse" else binary_cross_entropy_with_logits)(outputs.float(), targets)

    def train(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Loss, gradients of `trained`, new values of `changed`, results of _GRADIENT_READY."""
        state = self._state_of(tensors)
        self._set_mode(is_training=True)
        leaves = {name: state[name].detach().requires_grad_(True) for name in self.trained}
        self.signals = {}
        for name, leaf in leaves.items():
            leaf.register_hook(lambda gradient, name=name: self.signal(name, gradient))
        with torch.enable_grad():
            state.update(leaves)
            loss, _ = self.values(self._functional(state), *tensors[-2:])
            if not loss.requires_grad:
                raise self.fail("its loss depends on no parameter that requires a gradient")
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        self.unused = {name for name, gradient in zip(leaves, gradients) if gradient is None}
        for name, gradient in zip(leaves, gradients):
            if gradient is not None and gradient.layout != torch.strided:
                raise self.fail(f"parameter '{name}' gets sparse gradients, which packages cannot return; create its embedding "
                                "with sparse=False")
        for name in self.buffers:
            after, before = ((each[name].dtype, list(each[name].shape)) for each in (state, self.state))
            if after != before:
                raise self.fail(f"buffer '{name}' is {before[0]} {before[1]}, but after a step {after[0]} {after[1]}; buffers must "
                                "keep dtype and shape")
        complete = [torch.zeros_like(leaf) if gradient is None else gradient
                    for leaf, gradient in zip(leaves.values(), gradients)]
        return (loss.detach(), *(each.detach() for each in complete), *(state[name].detach() for name in self.changed), *self.signals.values())

    def signal(self, name: str, gradient: Tensor) -> None:
        """Called in the backward pass as soon as a parameter's gradient is complete."""
        self.signals[name] = _GRADIENT_READY(gradient.detach(), self.trained.index(name))

    def evaluate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Loss, and outputs if the module returns any."""
        self._set_mode(is_training=False)
        with torch.no_grad():
            loss, outputs = self.values(self._functional(self._state_of(tensors)), *tensors[-2:])
        return (loss,) if outputs is None else (loss, outputs)

    def renew(self) -> None:
        """Forgets what a former step has left in attributes of the module and the loss."""
        self.copied, self.loss = copy.deepcopy(self.module), copy.deepcopy(self.first_loss)

    def _set_mode(self, *, is_training: bool) -> None:
        self.is_training = is_training
        for each in (self.copied, self.loss):
            if isinstance(each, nn.Module):
                each.train(is_training)

    def check_attributes(self) -> None:
        """A graph contains an attribute's value before the step: it cannot keep one from step to step."""
        for part in self.loss.modules() if isinstance(self.loss, nn.Module) else (self.loss,):
            for name, value in getattr(part, "__dict__", {}).items():
                if isinstance(value, FakeTensor):
                    raise ExportError(f"loss: keeps a tensor in the attribute '{name}', which would not be saved; register it as a "
                                      f"buffer of the module, and {_LOSS_IN_FORWARD}")
        for prefix, module in self.copied.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, FakeTensor):
                    raise self.fail(f"its forward keeps a tensor in the attribute '{prefix + '.' if prefix else ''}{name}'; register "
                                    "it as a buffer if a later step reads it, else delete it at the end of forward")

    def _functional(self, state: dict[str, Tensor]) -> Callable[..., Any]:
        """The module with this state. A call replaces the buffers that the module assigns in `state`."""
        return lambda *arguments: torch.func.functional_call(self.copied, state, arguments)

    def trained_state(self) -> dict[str, Tensor]:
        """A state as after some steps: without zeros that are only initial, and with other buffers."""
        buffers = self.eager("train", self.state, self.batch(self.inputs.size(0)), torch.float32)[1 + len(self.trained):]
        state = {**self.state, **{name: buffer.detach().clone(memory_format=torch.contiguous_format)
                                  for name, buffer in zip(self.changed, buffers)}}
        generator = torch.Generator().manual_seed(0)
        for name in self.trained:
            scale = self.state[name].std(correction=0).clamp(min=0.02)
            state[name] = self.state[name] + 0.05 * scale * torch.randn(self.state[name].shape, generator=generator)
        return state

    def eager(self, name: str, state: dict[str, Tensor], batch: tuple[Tensor, Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The results of `train` or `evaluate` with this state, computed as a training in eager PyTorch does."""
        self.renew()
        self._set_mode(is_training=name == "train")
        module = self.copied
        tensors = _named(module)
        for each, value in state.items():
            tensors[each].data = value.clone()
        # A buffer of several modules stays one tensor.
        converted: dict[int, Tensor] = {}
        module._apply(lambda tensor: converted.setdefault(id(tensor), _converted(tensor, torch.float32, dtype)))
        inputs, targets = (_converted(tensor, torch.float32, dtype) for tensor in batch)
        tensors = {each: tensor for each, tensor in _named(module).items() if each in state}
        before = {each: tensor.detach().clone() for each, tensor in tensors.items()}
        default = torch.get_default_dtype()
        torch.manual_seed(0)
        try:
            torch.set_default_dtype(dtype)
            with _InFloat64() if dtype == torch.float64 else contextlib.nullcontext():
                loss, outputs = self.values(module, inputs, targets)
                if name == "evaluate":
                    return [each.detach() for each in (loss, outputs) if each is not None]
                loss.backward()
        except Exception as error:
            raise self.fail(f"its step fails in {dtype}, in which the export is checked: {_first_line(error)}") from error
        finally:
            torch.set_default_dtype(default)
        tensors = {each: tensor for each, tensor in _named(module).items() if each in state}
        for each, tensor in tensors.items():
            if each not in self.changed and not tensor.equal(before[each]):
                raise self.fail(f"{self.kind(each)} '{each}' changes in a training step in eager PyTorch, but not in the graph; "
                                "register it as a buffer, and assign new values to the module's attribute")
        gradients = [tensors[each].grad for each in self.trained]
        return [loss.detach(), *(torch.zeros_like(tensors[each]) if gradient is None else gradient
                                 for each, gradient in zip(self.trained, gradients)), *(tensors[each] for each in self.changed)]

    def _state_of(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Buffers are copies: the module changes them in place."""
        return {name: tensor.clone() if self.roles[name] == "buffer" else tensor for name, tensor in zip(self.state, tensors)}

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Samples of the example in another order."""
        samples = torch.arange(size - 1, -1, -1) % self.inputs.size(0)
        return self.inputs[samples], self.targets[samples]

    @contextlib.contextmanager
    def _no_other_random_numbers(self) -> Iterator[None]:
        numpy = sys.modules.get("numpy")
        python_state, numpy_state = random.getstate(), numpy.random.get_state(legacy=False) if numpy else None
        yield
        drawn = [] if random.getstate() == python_state else ["random"]
        random.setstate(python_state)
        if numpy and repr(numpy.random.get_state(legacy=False)) != repr(numpy_state):
            drawn.append("numpy.random")
        if numpy:
            numpy.random.set_state(numpy_state)
        if drawn:
            raise self.fail(f"it draws numbers from Python's {drawn[0]}, which an export would freeze; use torch.rand and torch.where")

    def check_eager(self) -> None:
        """Errors of the module itself, before anything is traced."""
        for run in (self.train, self.evaluate):
            self.renew()
            copies = [tensor.clone() for tensor in (*self.state.values(), self.inputs, self.targets)]
            try:
                with self._no_other_random_numbers():
                    run(*copies)
            except ExportError:
                raise
            except Exception as error:
                raise self.fail("its forward or backward pass fails on the example, before the export: "
                                f"{_first_line(error)}") from error
            for name, copied in zip(self.state, copies):
                if not copied.equal(self.state[name]):
                    raise self.fail(f"its forward changes parameter '{name}' in place; register it as a buffer, or compute with a "
                                    "clone")
            for name, copied, given in zip(("inputs", "targets"), copies[-2:], (self.inputs, self.targets)):
                if not copied.equal(given):
                    raise self.fail(f"its forward changes the {name} in place; clone them first")
            if isinstance(self.loss, nn.Module):
                before = _named(self.first_loss)
                for name, tensor in _named(self.loss).items():
                    if tensor.shape != before[name].shape or not tensor.equal(before[name]):
                        raise ExportError(f"loss: changes its buffer '{name}', which would not be saved; {_LOSS_IN_FORWARD}")


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each under all its names."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _trace(step: _Step, name: str) -> torch.fx.GraphModule:
    """The graph of aten operators, in which only the batch size is symbolic."""
    graph, symbol, conditions = _trace_batch(step, name, step.inputs.size(0))
    # Conditions on the batch size may come from the module, or from PyTorch, which selects kernels by it and records the same
    # operators. The module's conditions change the graph of a batch for which they do not hold.
    others: dict[int, Any] = {}
    for condition in conditions:
        # A comparison with sympy's false: a condition may also stay symbolic.
        sizes = [size for size in _other_sizes(condition, step.max_batch) if condition.subs(symbol, size) == False]  # noqa: E712
        if sizes:
            others.setdefault(sizes[0], condition)
    for size, condition in others.items():
        if _trace_batch(step, name, size)[0].code != graph.code:
            raise step.fail(f"its code depends on the batch size: {condition} holds for the example, but not for a batch of "
                            f"{size}; use code that is the same for all batch sizes")
    for node in graph.graph.nodes:
        if (isinstance(node.target, torch._ops.OpOverload) and node.target is not _GRADIENT_READY
                and node.target.namespace not in ("aten", "prims")):
            raise step.fail(f"it calls the operator {node.target}, which LibTorch does not contain; use operators of PyTorch")
    if name == "train":
        _drop_unchanged_buffers(step, graph)
        _stack_selected(graph)
        _join_products(graph)
    return graph


def _parts_of_sum(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The node, after all sums and terms that are computed for it alone."""
    parts = []
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
        for each in node.args:
            if isinstance(each, torch.fx.Node) and len(each.users) == 1:
                parts += _parts_of_sum(each)
    return [*parts, node]


def _join_products(graph: torch.fx.GraphModule) -> None:
    """The gradient of a weight that many steps use, as in recurrent layers, is a sum of small matrix products. Here it becomes
    one product of joined matrices."""
    aten = torch.ops.aten

    def unwrapped(node: torch.fx.Node) -> list[torch.fx.Node]:
        """The node, after the nodes of which it is a double transpose."""
        if node.target is aten.t.default and node.args[0].target is aten.t.default and len(node.args[0].users) == 1:
            return [*unwrapped(node.args[0].args[0]), node.args[0], node]
        return [node]

    for node in reversed(graph.graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        parts = _parts_of_sum(node) if node.users else []
        terms = [unwrapped(part) for part in parts if part.target is not aten.add.Tensor]
        if len(terms) < 3 or len(parts) != 2 * len(terms) - 1:
            continue
        products = [term[0] for term in terms]
        value = node.meta["val"]
        if not all(product.target is aten.mm.default and len(product.users) == 1 and product.args[0].target is aten.t.default
                   and product.meta["val"].shape == value.shape and product.meta["val"].dtype == value.dtype
                   for product in products):
            continue
        # The backward pass takes the steps from the last one to the first.
        lefts, rights = zip(*((product.args[0].args[0], product.args[1]) for product in reversed(products)))
        with graph.graph.inserting_before(node):
            left, right = (graph.graph.call_function(aten.cat.default, (list(each), 0)) for each in (lefts, rights))
            joined = graph.graph.call_function(aten.mm.default, (graph.graph.call_function(aten.t.default, (left,)), right))
        joined.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(joined)
        for part in reversed(parts):
            for each in reversed(next((term for term in terms if term[-1] is part), [part])):
                graph.graph.erase_node(each)
    graph.recompile()


def _stack_selected(graph: torch.fx.GraphModule) -> None:
    """Where a tensor is taken apart by select, as queries, keys and values are, its gradient is a sum of tensors that are zero
    but for one index each. AOTInductor computes all of them for each element. Instead the gradients are stacked."""
    aten = torch.ops.aten
    for node in reversed(graph.graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        # A sum that is then permuted is faster as it is: the permutation is part of its loop.
        if not node.users or any(user.target is aten.permute.default for user in node.users):
            continue
        parts = _parts_of_sum(node)
        selected = [part for part in parts if part.target is aten.select_backward.default]
        if len(parts) != 2 * len(selected) - 1:  # Terms of other kinds, or that are used elsewhere.
            continue
        shape, dim = node.meta["val"].shape, selected[0].args[2] % node.meta["val"].dim()
        if not isinstance(shape[dim], int) or any(
                part.meta["val"].shape != shape or part.args[2] % len(shape) != dim or not isinstance(part.args[3], int)
                for part in selected):
            continue
        gradients = {part.args[3] % shape[dim]: part.args[0] for part in selected}
        if len(gradients) != len(selected) or len(gradients) != shape[dim]:
            continue
        with graph.graph.inserting_before(node):
            stacked = graph.graph.call_function(aten.stack.default, ([gradients[each] for each in sorted(gradients)], dim))
        stacked.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(stacked)
        for part in reversed(parts):
            graph.graph.erase_node(part)
    graph.recompile()


def _other_sizes(condition: Any, largest: int) -> list[int]:
    """Batch sizes for which a condition may differ: also those near its own numbers."""
    numbers = [abs(int(atom)) for atom in condition.atoms() if atom.is_Integer]
    near = [size for number in numbers for size in (number - 1, number, number + 1, 2 * number)]
    powers = [2**exponent for exponent in range(1, largest.bit_length())]
    return sorted({size for size in (*_OTHER_SIZES, *near, *powers, largest) if 2 <= size <= largest})


def _trace_batch(step: _Step, name: str, size: int) -> tuple[torch.fx.GraphModule, Any, list[Any]]:
    """The graph that a batch of this size gives, the symbol of the batch size, and the conditions on it, which the graph
    relies on."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    tensors = [mode.from_tensor(tensor, static_shapes=True) for tensor in step.state.values()]
    for source, tensor in (("inputs", step.inputs), ("targets", step.targets)):
        # Symbols of equal sizes are one symbol.
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] + [DimDynamic.STATIC] * (tensor.dim() - 1))
        try:
            empty = tensor.new_empty([size, *tensor.shape[1:]])
        except RuntimeError as error:
            raise step.fail(f"its code has a condition on the batch size, whose check needs a batch of {size}: "
                            f"{_first_line(error)}; give a smaller max_batch") from error
        tensors.append(mode.from_tensor(empty, source=ConstantSource(source), symbolic_context=context))
    symbol = tensors[-1].size(0).node.expr
    shapes.constrain_symbol_range(symbol, 2, step.max_batch)
    run = getattr(step, name)
    step.renew()
    try:
        with mode, enable_python_dispatcher(), _plain_operators():
            graph = make_fx(lambda *tensors: run(*tensors))(*tensors)
    except ExportError:
        raise
    except Exception as error:
        raise step.fail(_reason("its step cannot be traced", error)) from error
    if any(node.target == torch.ops.aten._local_scalar_dense.default for node in graph.graph.nodes):
        raise step.fail(_depends_on_values("item() or a conversion to a number"))
    step.check_attributes()
    return graph, symbol, [guard.expr for guard in shapes.guards]


@contextlib.contextmanager
def _plain_operators() -> Iterator[None]:
    """Recurrent layers and encoders of transformers are traced as the operators that they consist of. As in torch.export,
    torch.compiler.is_compiling() is true: libraries then skip warnings and shortcuts that depend on values."""
    from torch._decomp import decompositions

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # oneDNN's LSTM keeps nothing for gradients in compiled code, which runs without autograd.
        with torch.backends.mkldnn.flags(enabled=False), mock.patch.object(torch.compiler, "_is_compiling_flag", True), \
                mock.patch.object(torch.compiler, "_is_exporting_flag", True), \
                mock.patch.object(decompositions, "_rnn_helper", _recurrent_layers):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _recurrent_layers(inputs: Tensor, hidden: Any, parameters: Any, has_biases: bool, layers: int, dropout: float, train: bool,
                      bidirectional: bool, batch_first: bool, run: Callable[..., Any]) -> tuple[Tensor, list[Any]]:
    """The layers of torch.nn.RNN, GRU and LSTM. PyTorch's own function for traces leaves out the dropout between layers."""
    from torch._decomp.decompositions import params_hiddens

    states = []
    inputs = inputs.transpose(0, 1) if batch_first else inputs
    for number in range(layers):
        parts = params_hiddens(parameters, hidden, number, bidirectional)
        outputs, state = run(inputs, parts[1], parts[0], has_biases)
        states.append(state)
        if bidirectional:
            reverse, state = run(inputs, parts[3], parts[2], has_biases, reverse=True)
            states.append(state)
            outputs = torch.cat([outputs, reverse], -1)
        inputs = torch.dropout(outputs, dropout, True) if dropout and train and number < layers - 1 else outputs
    return inputs.transpose(0, 1) if batch_first else inputs, states


def _reason(failure: str, error: Exception) -> str:
    kind = type(error).__name__
    if "DataDependent" in kind or "DynamicOutputShape" in kind:
        return _depends_on_values(_first_line(error))
    return f"{failure}: {kind}: {_first_line(error)}; use operators of PyTorch on dense tensors, {_TORCHSCRIPT}"


def _depends_on_values(detail: str) -> str:
    return (f"its code depends on the values of tensors ({detail}); use torch.where or masks instead of if, while and item(), "
            f"{_TORCHSCRIPT}")


def _is_changed(node: torch.fx.Node) -> bool:
    """Whether an operator may change the tensor in place, or a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if user.op == "output":
            continue
        if user.target is getitem:
            if _is_changed(user):
                return True
            continue
        # The schemas of batch norms lack the change of their running averages.
        if schema is None or schema.is_mutable or "batch_norm" in schema.name:
            return True
        if any(each.alias_info is not None for each in schema.returns) and _is_changed(user):
            return True
    return False


def _drop_unchanged_buffers(step: _Step, graph: torch.fx.GraphModule) -> None:
    """Removes the outputs of buffers that no operator changes, such as masks. The check compares them all the same."""
    placeholders = dict(zip(step.state, graph.graph.find_nodes(op="placeholder")))
    (output,) = graph.graph.find_nodes(op="output")
    values = list(output.args[0])
    first = 1 + len(step.trained)
    last = first + len(step.buffers)
    kept = []
    for name, value in zip(step.buffers, values[first:last]):
        source = value
        while source.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            source = source.args[0]
        is_copy = source.target == torch.ops.aten.clone.default and source.args[0] is placeholders[name]
        if not is_copy or _is_changed(source):
            kept.append((name, value))
    step.changed = [name for name, _ in kept]
    output.args = (tuple(values[:first] + [value for _, value in kept] + values[last:]),)
    graph.recompile()


# Operators that only move elements of their first argument, or of the list that it is.
_MOVES = {getattr(torch.ops.aten, name) for name in (
    "view", "_unsafe_view", "reshape", "slice", "select", "unsqueeze", "squeeze", "detach", "alias", "clone", "expand", "transpose",
    "t", "permute", "cat", "stack", "split", "split_with_sizes", "unbind", "flip", "roll", "repeat", "diagonal", "constant_pad_nd")}
# Operators with an index, whose range compiled code checks: the arguments that are indexed and the index, and the dimension,
# a number or an argument.
_INDEXING = {
    **{f"aten::{name}": ("self", "index", "dim") for name in (
        "gather", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
        "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_")},
    **{f"aten::{name}": ("weight", "indices", 0) for name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only")},
    "aten::nll_loss_forward": ("self", "target", -1), "aten::nll_loss2d_forward": ("self", "target", 1)}
_INDEXING_BY_LISTS = ("aten::index", "aten::index_put", "aten::index_put_")


def _ranges(step: _Step, graph: torch.fx.GraphModule, name: str) -> list[dict[str, Any]]:
    """The ranges of the inputs or the targets, for the elements that are indices, such as rows of an embedding and classes.
    Compiled code ends the process if they are outside. An index that is computed from inputs or targets has none."""
    (inputs, targets) = graph.graph.find_nodes(op="placeholder")[-2:]
    wanted, example = (inputs, step.inputs) if name == "inputs" else (targets, step.targets)
    places, found = _Places(wanted, example), []
    for node in graph.graph.nodes:
        for index, size, limits in _indices(node):
            slices = places.slices(index) if isinstance(size, int) else None
            if slices is None:
                continue
            entry = {"least": 0, "most": size - 1, "ignored": None, "slices": slices, **limits(size)}
            numbers = example[(slice(None), *(slice(*each) for each in slices))].long()
            is_valid = (numbers >= entry["least"]) & (numbers <= entry["most"]) | (numbers == entry["ignored"])
            if entry not in found and bool(is_valid.all()):
                found.append(entry)
    return found


def _indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, Any, Callable[[int], dict[str, Any]]]]:
    """The indices of an operator, the size of the indexed dimension, and other entries of their range."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    arguments = {**dict(zip((each.name for each in node.target._schema.arguments), node.args)), **node.kwargs}
    kind = node.target._schema.name
    if kind in _INDEXING:
        of, index, dimension = _INDEXING[kind]
        sizes = arguments[of].meta["val"].shape
        ignored = arguments.get("ignore_index", -100) if index == "target" else None
        if sizes:
            yield (arguments[index], sizes[arguments[dimension] if isinstance(dimension, str) else dimension],
                   lambda size: {"ignored": ignored})
    elif kind in _INDEXING_BY_LISTS:
        indices = list(enumerate(arguments["indices"]))
        if all(index is None or index.meta["val"].dtype == torch.int64 for _, index in indices):  # Others are masks.
            for dimension, index in indices:
                if index is not None:  # Negative ones count from the end.
                    yield index, arguments["self"].meta["val"].size(dimension), lambda size: {"least": -size}
    elif one_hot := _one_hot(node):
        yield *one_hot, lambda size: {}


def _one_hot(node: torch.fx.Node) -> Optional[tuple[torch.fx.Node, int]]:
    """The index and the number of classes of one_hot, which eager PyTorch checks. Its graph compares all classes with the index,
    so that others become zeros."""
    aten = torch.ops.aten
    if node.target is aten.eq.Tensor:  # Calls of arange in Python have other arguments than one_hot's in torch 2.11.
        index, classes = node.args
        found = (isinstance(classes, torch.fx.Node) and classes.target is aten.arange.default and "layout" in classes.kwargs
                 and "pin_memory" not in classes.kwargs)
        return (index, classes.args[0]) if found else None
    # Newer ones check the index in the graph.
    if node.target is aten._assert_async.msg and node.args[1].startswith("one_hot") and node.args[0].target is aten.all.default:
        (limit,) = node.args[0].args
        return tuple(limit.args) if limit.target is aten.lt.Scalar else None
    return None


class _Places:
    """Which elements of a tensor of the graph are elements of `wanted`, a tensor like `example`."""

    def __init__(self, wanted: torch.fx.Node, example: Tensor):
        self.example = example
        self.known: dict[torch.fx.Node, Any] = {wanted: torch.arange(example.numel()).view(example.shape)}

    def of(self, node: torch.fx.Node) -> Any:
        """Their numbers in `wanted`, -1 for other elements. A list if the node is one."""
        if node not in self.known:
            self.known[node] = self._moved(node)
        return self.known[node]

    def _moved(self, node: torch.fx.Node) -> Any:
        if node.target is getitem:
            return self.of(node.args[0])[node.args[1]]
        kind = getattr(node.target, "overloadpacket", None)
        if kind is torch.ops.aten._to_copy and node.meta["val"].dtype in (torch.int32, torch.int64) and not _is_changed(node):
            return self.of(node.args[0])
        if kind in _MOVES and not _is_changed(node):
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), self._argument)
            if kind is torch.ops.aten.constant_pad_nd:
                args = (*args[:2], -1)
            return node.target(*args, **kwargs)
        return pytree.tree_map_only(Tensor, lambda each: torch.full([self._size(size) for size in each.shape], -1), node.meta["val"])

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        return self.of(value) if isinstance(value.meta["val"], Tensor) else self._size(value.meta["val"])

    def _size(self, size: Any) -> int:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        return int(expression.subs({symbol: self.example.size(0) for symbol in expression.free_symbols}))

    def slices(self, node: torch.fx.Node) -> Optional[list[list[int]]]:
        """The elements of `wanted` in the node: [begin, end, step] for each dimension but the batch. None if there are none,
        or if slices are not all of them."""
        try:
            places = self.of(node).unique()
        except (KeyError, RuntimeError):  # For example a view of a tensor that has other strides here.
            return None
        places = places[places >= 0]
        batch, shape = self.example.size(0), self.example.shape[1:]
        in_sample = (places % max(shape.numel(), 1)).unique()
        if places.numel() == 0 or places.numel() != batch * in_sample.numel():
            return None
        slices, count = [], 1
        for coordinates in torch.unravel_index(in_sample, shape) if shape else ():
            values = coordinates.unique()
            steps = values.diff().unique().tolist() or [1]
            if len(steps) > 1:
                return None
            slices.append([int(values[0]), int(values[-1]) + 1, steps[0]])
            count *= values.numel()
        return slices if count == in_sample.numel() else None


def _manifest(step: _Step, graphs: dict[str, torch.fx.GraphModule], options: dict[str, Any]) -> dict[str, Any]:
    def described(tensor: Tensor, batch: bool = False) -> dict[str, Any]:
        # A size that is not a number is the batch size, or computed from it.
        sizes = [size if isinstance(size, int) else "batch" if size.node.expr.is_Symbol else None for size in tensor.shape]
        return {"shape": ["batch", *sizes[1:]] if batch else sizes, "dtype": _DTYPES[tensor.dtype]}

    state = []
    for name, tensor in step.state.items():
        entry = {"name": name, "role": step.roles[name], **described(tensor)}
        if step.roles[name] == "trained":
            entry["unused"] = name in step.unused
        elif step.roles[name] == "buffer":
            entry["persistent"] = step.persistent[name]
        state.append(entry)
    outputs: dict[str, list[dict[str, Any]]] = {name: [{"role": "loss"}] for name in graphs}
    outputs["train"] += [{"role": "gradient", "name": name} for name in step.trained]
    outputs["train"] += [{"role": "buffer", "name": name} for name in step.changed]
    outputs["train"] += [{"role": "signal", "name": name, "kept": True} for name in step.signals]
    (output,) = graphs["evaluate"].graph.find_nodes(op="output")
    outputs["evaluate"] += [{"role": "outputs", **described(node.meta["val"])} for node in output.args[0][1:]]
    loss = "module" if step.loss is None else step.loss if isinstance(step.loss, str) else "custom"
    return {"format": FORMAT, "module": step.name, "torch": torch.__version__, "device": "cpu", "machine": platform.machine(),
            "loss": loss, "label_smoothing": float(step.label_smoothing), **options,
            **{name: {**described(each, batch=True), "ranges": _ranges(step, graphs["train"], name)}
               for name, each in (("inputs", step.inputs), ("targets", step.targets))},
            "state": state, "tied": step.tied,
            "graphs": {name: {"batch": {"min": 2, "max": step.max_batch}, "random": _draws(graph), "outputs": outputs[name]}
                       for name, graph in graphs.items()}}


def _check_vocabulary(step: _Step, evaluate: torch.fx.GraphModule, vocabulary: Optional[Sequence[str]]) -> None:
    if vocabulary is None:
        return
    if not all(isinstance(each, str) and len(each) == 1 for each in vocabulary) or len(set(vocabulary)) != len(vocabulary):
        raise ExportError("vocabulary: must contain single characters, each once; give none for other tokens")
    if step.loss == "cross_entropy":
        (output,) = evaluate.graph.find_nodes(op="output")
        classes = output.args[0][1].meta["val"].shape[-1]
        if classes != len(vocabulary):
            raise ExportError(f"vocabulary: has {len(vocabulary)} characters, but the module returns {classes} logits")


def _hash(manifest: dict[str, Any], graphs: dict[str, torch.fx.GraphModule]) -> str:
    """Of what is computed, not of how it was compiled."""
    compiled = ("torch", "machine", "instruction_set", "threads")
    sha256 = hashlib.sha256(json.dumps({key: value for key, value in manifest.items() if key not in compiled},
                                       sort_keys=True).encode())
    for graph in graphs.values():
        sha256.update(graph.code.encode())
        for node in graph.graph.find_nodes(op="get_attr"):
            constant = getattr(graph, node.target)
            if isinstance(constant, Tensor):
                sha256.update(_safetensors({node.target: constant.detach().contiguous()}))
    return sha256.hexdigest()


def _draws(graph: torch.fx.GraphModule) -> bool:
    return any(_is_random(node.target) for node in graph.graph.nodes)


def _is_random(operator: Any) -> bool:
    """On the CPU, this attention takes no dropout, but has the tag as well."""
    return (torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
            and operator is not torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)


def _instruction_set(given: Optional[str]) -> Optional[str]:
    """One of _LEVELS, or None on processors of other kinds."""
    if given is not None and given not in _LEVELS:
        raise ExportError(f"instruction_set: must be {' or '.join(_LEVELS)}, but is '{given}'")
    if platform.machine() not in ("x86_64", "AMD64"):
        if given is not None:
            raise ExportError(f"instruction_set: {given} is impossible on {platform.machine()}")
        return None
    supported = {"AVX512": torch.cpu._is_avx512_supported(), "AVX2": torch.cpu._is_avx2_supported()}
    available = [name for name, is_supported in supported.items() if is_supported]
    if not available or given not in (None, *available):
        raise ExportError(f"instruction_set: this processor has {' and '.join(available) or 'neither AVX2 nor AVX512'}; export on "
                          f"one that has {given or 'AVX2'}")
    return given or available[0]


def _native_instruction_set() -> str:
    from torch._inductor import cpu_vec_isa

    return str(cpu_vec_isa.pick_vec_isa())


def _check_toolchain() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        raise ExportError(f"no C++ compiler: {os.environ.get('CXX', 'g++')} does not run; install g++ 11 or newer, or set "
                          "CXX") from error
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        raise ExportError(f"no headers of Python: {header} is missing; install them, for example python3-dev")


@contextlib.contextmanager
def _compiling_for(level: Optional[str]) -> Iterator[None]:
    """AOTInductor uses everything that this processor has (-march=native). Here the package must run on every processor with
    the instruction set that its manifest names."""
    if level is None:
        yield
        return
    from torch._inductor import cpp_builder, cpu_vec_isa

    class Isa(cpu_vec_isa.VecAVX512 if level == "AVX512" else cpu_vec_isa.VecAVX2):  # type: ignore[misc]
        __hash__ = cpu_vec_isa.VecISA.__hash__

        def __bool__(self) -> bool:
            return True

        def build_arch_flags(self) -> str:
            return self._arch_flags

    flags_of = cpp_builder._get_optimization_cflags

    def flags(*arguments: Any, **options: Any) -> Any:
        compiler, linker = flags_of(*arguments, **options)
        return [f"march={_LEVELS[level]}" if flag == "march=native" else flag for flag in compiler], linker

    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: [Isa()]), \
            mock.patch.object(cpp_builder, "_get_optimization_cflags", flags):
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Sums into rows, as in gradients of embeddings, are compiled as calls of PyTorch, instead of loops in which threads race."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@contextlib.contextmanager
def _calls() -> Iterator[None]:
    """Operators that are calls of PyTorch. AOTInductor would compile the gradient of a max pool into a loop of divisions that
    takes many times as long."""
    from torch._inductor import lowering

    called = (torch.ops.aten.max_pool2d_with_indices_backward.default,)
    with mock.patch.dict(lowering.lowerings, {each: lowering.fallback_handler(each, add_to_fallback_set=False) for each in called}):
        yield


@contextlib.contextmanager
def _declared_arrays() -> Iterator[None]:
    """AOTInductor finds the arrays that it has declared in a function by id(function.writeline). The id of this temporary object
    may be another function's later, whose code then lacks a declaration. Here each function has one object until the end."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    original = CppWrapperCpu.codegen_int_array_var
    kept: dict[Any, Any] = {}

    def declare(self: Any, int_array: str, writeline: Any, *arguments: Any, **options: Any) -> str:
        return original(self, int_array, kept.setdefault(writeline, writeline), *arguments, **options)

    with mock.patch.object(CppWrapperCpu, "codegen_int_array_var", declare):
        yield


@contextlib.contextmanager
def _simpler_indices() -> Iterator[None]:
    """AOTInductor removes divisions from the indices of views only where sizes are numbers. What is left makes loops scalar. Here
    it removes them also where a size is the batch: (x + 32 * y + 128 * z) // 128 % batch is z if x < 32, y < 4 and z < batch."""
    from torch._inductor import sizevars

    original = sizevars.SizeVarAllocator._simplify_with_ranges

    def simplify(self: Any, expression: Any, ranges: dict[Any, Any]) -> Any:
        before = original(self, expression, ranges)
        after = _without_divisions(before, ranges)
        return after if after == before else simplify(self, after, ranges)

    with mock.patch.object(sizevars.SizeVarAllocator, "_simplify_with_ranges", simplify):
        yield


def _without_divisions(expression: Any, ranges: dict[Any, Any]) -> Any:
    """An index, in which each variable is at least 0 and below its range, with fewer divisions. Sizes are at least 1."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    # Divisions that remain are variables, too.
    ranges = dict(ranges)
    divisions: dict[Any, Any] = {}

    def variable(division: Any, below: Any) -> Any:
        if division.is_number or division.is_Symbol:
            return division
        for symbol, known in divisions.items():
            if known == division:
                return symbol
        symbol = sympy.Dummy(integer=True, nonnegative=True)
        divisions[symbol] = division
        if below is not None:
            ranges[symbol] = below
        return symbol

    def coefficients(terms: Any) -> list[Any]:
        """Of a polynomial, of anything else -1."""
        terms = sympy.expand(terms)
        return list(terms.as_coefficients_dict().values()) if terms.is_polynomial() else [sympy.S.NegativeOne]

    def largest(terms: Any) -> Any:
        """The largest value of a sum of products that are not negative. None: unknown."""
        if any(each < 0 for each in coefficients(terms)) or any(each in divisions and each not in ranges for each in terms.free_symbols):
            return None
        return terms.subs({symbol: ranges[symbol] - 1 for symbol in terms.free_symbols if symbol in ranges}, simultaneous=True)

    def is_below(terms: Any, limit: Any) -> bool:
        found = largest(terms)
        if found is None:
            return False
        difference = limit - 1 - found
        shifted = difference.subs({symbol: symbol + 1 for symbol in difference.free_symbols}, simultaneous=True)
        return all(each >= 0 for each in coefficients(shifted))

    def split(terms: Any, by: Any) -> tuple[Any, Any]:
        """The quotient of the terms that are multiples, and the sum of all others."""
        quotient, rest = sympy.S.Zero, sympy.S.Zero
        for term in sympy.Add.make_args(sympy.expand(terms)):
            part = sympy.cancel(term / by)
            if all(each.is_Integer and each >= 0 for each in coefficients(part)):
                quotient += part
            else:
                rest += term
        return quotient, rest

    def floor_div(base: Any, divisor: Any) -> Any:
        if largest(base) is None or any(each <= 0 for each in coefficients(divisor)):
            return variable(FloorDiv(base, divisor), None)
        quotient, rest = split(base, divisor)
        if is_below(rest, divisor):
            return quotient
        found = largest(rest)
        is_known = found.is_Integer and divisor.is_Integer
        return quotient + variable(FloorDiv(rest, divisor), found // divisor + 1 if is_known else None)

    def modular_indexing(base: Any, divisor: Any, modulus: Any) -> Any:
        whole = floor_div(base, divisor)
        if any(each < 0 for each in coefficients(whole)) or any(each <= 0 for each in coefficients(modulus)):
            return variable(ModularIndexing(base, divisor, modulus), None)
        _, rest = split(whole, modulus)
        return rest if is_below(rest, modulus) else variable(ModularIndexing(base, divisor, modulus), modulus)

    if not expression.has(FloorDiv, ModularIndexing):
        return expression

    def visit(node: Any) -> Any:
        if not node.args or not node.has(FloorDiv, ModularIndexing):
            return node
        arguments = [visit(each) for each in node.args]
        if isinstance(node, FloorDiv):
            return floor_div(*arguments)
        if isinstance(node, ModularIndexing):
            return modular_indexing(*arguments)
        return node.func(*arguments)

    result = visit(expression)
    while result.free_symbols & divisions.keys():
        result = result.xreplace(divisions)
    return result


def _compile(step: _Step, name: str, graph: torch.fx.GraphModule, path: pathlib.Path, level: Optional[str],
             one_thread: bool) -> None:
    _log.info("%s: compiles %s, %d operators", step.name, name, len(graph.graph.nodes))
    batch = torch.export.Dim("batch", min=2, max=step.max_batch)
    options = {
        # Symbols of LibTorch come from the program, which need not have libtorch.so.
        "aot_inductor.link_libtorch": False,
        # Dropout draws the numbers that it draws in eager PyTorch.
        "fallback_random": True,
        # Gradients stay where the backward pass computes them, instead of at the end.
        "reorder_for_locality": False,
        "reorder_for_peak_memory": False,
        # Else it would convert the weights of convolutions to channels_last, and their gradients back, in each step.
        "layout_optimization": False,
        # The number of threads is that of the training, instead of the export's.
        "cpp.dynamic_threads": not one_thread,
        # With dynamic_threads and 1, AOTInductor forgets `omp single`: all threads would repeat sums.
        "cpp.threads": 1 if one_thread else 4,
    }
    try:
        program = torch.export.export(graph, (*step.state.values(), step.inputs, step.targets),
                                      dynamic_shapes=tuple([None] * len(step.state) + [{0: batch}] * 2))
        with _compiling_for(level), _deterministic(), _simpler_indices(), _calls(), _declared_arrays():
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    except Exception as error:
        raise step.fail(_reason(f"its graph {name} cannot be compiled", error)) from error


Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def _runner(path: pathlib.Path, name: str) -> Run:
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), name, False, 1, -1)
    return lambda tensors: loader.boxed_run(list(tensors))


class _InFloat64(TorchDispatchMode):
    """Computes in float64 where the code asks for float32. Random numbers are those of float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_random(func):
            narrow_args, narrow_kwargs = pytree.tree_map(lambda each: _converted(each, torch.float64, torch.float32),
                                                         (args, kwargs))
            torch.set_default_dtype(torch.float32)
            try:
                result = func(*narrow_args, **narrow_kwargs)
            finally:
                torch.set_default_dtype(torch.float64)
            if func._schema.is_mutable:
                return args[0].copy_(result)
            return pytree.tree_map(lambda each: _converted(each, torch.float32, torch.float64), result)
        if not func._schema.is_mutable:
            args, kwargs = pytree.tree_map(lambda each: _converted(each, torch.float32, torch.float64), (args, kwargs))
        return func(*args, **kwargs)


def _converted(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(target) if value.dtype == source else value
    return target if value is source else value


def _check(step: _Step, runs: dict[str, Run], manifest: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """Compares compiled graphs with eager PyTorch on batches of three sizes: on the larger one with several threads and with
    another state, since gradients may be zero at the initial weights, whatever their formula. Returns the largest
    differences. Sets in the manifest the least batch size, 1 if the module takes it and all agrees, and which reported
    gradients stay as they are."""
    largest = {"tolerance": tolerance, "gradients_float64": 0.0, "gradients_float32": 0.0}
    samples = step.inputs.size(0)
    larger, trained = min(2 * samples + 1, step.max_batch), step.trained_state()
    for name, run in runs.items():
        for size, threads, state in ((samples, 1, step.state), (larger, 3, trained), (1, 1, step.state)):
            try:
                with _threads(threads):
                    measured = _compare(step, name, run, state, step.batch(size), tolerance)
            except ExportError:
                if size == 1:  # For example because a batch norm needs 2 samples.
                    break
                raise
            if size == 1:
                manifest["graphs"][name]["batch"]["min"] = 1
            for key, value in measured.items():
                largest[key] = max(largest[key], value)
    for output in manifest["graphs"]["train"]["outputs"]:
        if output["role"] == "signal":
            output["kept"] = output["name"] not in step.reused
    return largest


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(step: _Step, name: str, run: Run, state: dict[str, Tensor], batch: tuple[Tensor, Tensor],
             tolerance: float) -> dict[str, float]:
    """Returns the differences of gradients, relative to their norm. The limit of each single tensor is the largest of
    - ten times the tolerance times its norm: sums of many terms that cancel have larger errors than all gradients together,
    - ten times the difference of eager PyTorch in float32 from float64: a gradient may consist of rounding errors,
    - for a gradient, float32's rounding error of all gradients."""
    exact, narrow = (step.eager(name, state, batch, dtype) for dtype in (torch.float64, torch.float32))
    tensors = [tensor.clone() for tensor in (*state.values(), *batch)]
    torch.manual_seed(0)
    with _hearing() as heard:
        actual = list(run([*tensors]))
    where = f"the compiled graph {name} differs from eager PyTorch on a batch of {batch[0].size(0)}"
    for tensor, before in zip(tensors, (*state.values(), *batch)):
        if not tensor.equal(before):
            raise step.fail(f"{where}: it changes its inputs; no package is written")
    labels = ["loss", "outputs"][:len(actual)] if name == "evaluate" else [
        "loss", *(f"gradient of '{each}'" for each in step.trained), *(f"buffer '{each}'" for each in step.changed)]
    results, signals = actual[:len(labels)], actual[len(labels):]
    if len(signals) != (len(step.signals) if name == "train" else 0) or [each.shape for each in results] != [
            each.shape for each in narrow]:
        raise step.fail(f"{where} in the shapes of its results; no package is written")
    measured: dict[str, float] = {}
    gradients = slice(1, 1 + len(step.trained) if name == "train" else 1)
    if name == "train":
        def relative(of: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
            return _norm(_differences(of[gradients], reference[gradients])) / (_norm(reference[gradients]) or 1.0)

        own = relative(narrow, exact)
        measured = {"gradients_float64": relative(actual, exact), "gradients_float32": relative(actual, narrow)}
        # If float32 and float64 differ by more, for example at the edge of a ReLU, the nearer one counts.
        worst = (max if own <= tolerance else min)(measured.values(), key=lambda each: each if each == each else float("inf"))
        if not worst <= tolerance:
            raise step.fail(f"{where}: its gradients differ by {measured['gradients_float64']:.1e} of their norm from float64 and by "
                            f"{measured['gradients_float32']:.1e} from float32, and the tolerance is {tolerance:.0e} (eager float32 "
                            f"differs from float64 by {own:.1e}); no package is written{_cause(step, worst)}")
    rounding = torch.finfo(torch.float32).eps * _norm(exact[gradients])
    for label, ours, wide, single in zip(labels, results, exact, narrow):
        if not wide.is_floating_point():
            if not ours.equal(single):
                raise step.fail(f"{where}: {label} is not equal; no package is written")
            continue
        error = _norm(_differences([ours], [wide]))
        limit = max(10 * tolerance * _norm([wide]), 10 * _norm(_differences([single], [wide])),
                    rounding if label.startswith("gradient") else 0.0)
        if not error <= limit:
            raise step.fail(f"{where}: {label} differs by {error:.1e} from float64, and its norm is {_norm([wide]):.1e}; no "
                            "package is written")
    if name == "train":
        for each in step.signals:
            number = step.trained.index(each)
            if number not in heard or not heard[number][1].equal(results[1 + number]):
                raise step.fail(f"{where}: it reports another gradient of '{each}' than it returns; no package is written")
            if not heard[number][0].equal(heard[number][1]):
                step.reused.add(each)
        # Memory that is an input's, another gradient's, or the same in each run, as a constant's is.
        memories = [gradient.untyped_storage().data_ptr() for gradient, _ in heard.values()]
        others = {tensor.untyped_storage().data_ptr() for tensor in (*tensors, *(each for each, _ in step.heard.values()))}
        step.reused |= {step.trained[number] for number, memory in zip(heard, memories)
                        if memory in others or memories.count(memory) > 1}
        step.heard = heard
    return measured


def _cause(step: _Step, difference: float) -> str:
    """What probably made gradients differ, for the end of an error."""
    if difference < _LARGEST_ROUNDING:
        return ". If the module is deep and has ReLUs or batch norms, try another example, or give tolerance=1e-4"
    if step.draws:
        return ("; such a difference is not rounding. A graph draws random numbers in another order if the step sets seeds, and twice "
                "if a dropout is inside of torch.utils.checkpoint: call its function directly")
    return "; such a difference is not rounding, so that the compiled code is wrong"


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(sum(tensor.double().square().sum() for tensor in tensors)) ** 0.5


def _differences(tensors: Sequence[Tensor], references: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.double() - reference.double() for tensor, reference in zip(tensors, references)]


def _safetensors(tensors: dict[str, Tensor]) -> bytes:
    """A file in the safetensors format. Wide dtypes come first, so that all data are aligned."""
    header, data = {}, []
    offset = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        data.append(ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b"")
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _compiled_records(part: pathlib.Path) -> dict[str, bytes]:
    folder = "data/aotinductor/model/"
    with zipfile.ZipFile(part) as archive:
        names = {record.partition("/")[2]: record for record in archive.namelist()}
        return {name.removeprefix(folder): archive.read(record) for name, record in names.items() if name.startswith(folder)}


def _write(path: pathlib.Path, parts: dict[str, pathlib.Path], manifest: dict[str, Any], weights: bytes) -> None:
    """One archive of both compiled graphs."""
    from torch.export.pt2_archive._package import PT2ArchiveWriter

    with PT2ArchiveWriter(str(path)) as package:
        for name, part in parts.items():
            for record, content in _compiled_records(part).items():
                if record.endswith("_metadata.json"):
                    content = json.dumps({**json.loads(content), "narrowcast": json.dumps(manifest)}).encode()
                package.write_bytes(f"data/aotinductor/{name}/{record}", content)
        package.write_bytes(_WEIGHTS, weights)
