"""Chapter 13's wrappers: DDP in its shortest form, ZeRO-1, 2 and 3, and one that gathers ahead.

`Zero3` is what the chapter ends with. Outside of a notebook:

    model = Zero3(module)             # its parameters are this rank's shards now
    optimizer = AdamW(model.parameters())
    model(inputs).mean().backward()
    model.finish()                    # every shard has its part of the mean gradient
    optimizer.step()

Source: S. Rajbhandari and others, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, 2020. PyTorch's names are in comments where they differ.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import pad
from torch.utils._pytree import tree_map


class OurDDP(nn.Module):
    """Chapter 05's DDP without buckets: one all-reduce for each gradient, after backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def finish(self) -> None:
        for parameter in self.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


def cut(full: torch.Tensor, shard_count: int, rank: int) -> torch.Tensor:
    """This rank's share of a tensor, flat, with zeros at the end of the last ones."""
    flat = full.detach().flatten()
    padded = pad(flat, (0, -len(flat) % shard_count))
    return padded.view(shard_count, -1)[rank].clone()


class Shards(OurDDP):
    """Of every parameter of a module, this rank holds a shard; who reads one is given it in full.

    Subclasses say how: `gather` and `reduce`.

    Args:
        module: Any module; its parameters become shards, under their own names.
        compute_dtype: What weights are gathered in and layers compute in; shards keep theirs.
        group: The ranks that share a copy of the module; all by default.
        across: This rank and those that hold the same shard of other copies.

    Attributes:
        shard_count: How many ranks share a copy of the module.
        copy_count: How many copies there are; 1 unless `across` is given.
        full: Gathered weights ("unsharded parameters" in FSDP2), by their shards.
        pending: Reduce-scatters under way: (shard, local gradient, work).
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        group: dist.ProcessGroup | None = None,
        across: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(module)
        self.compute_dtype, self.group, self.across = compute_dtype, group, across
        self.shard_count = dist.get_world_size(group)
        self.copy_count = across.size() if across else 1
        self.full: dict[nn.Parameter, torch.Tensor] = {}
        self.pending: list[tuple[nn.Parameter, torch.Tensor, dist.Work]] = []
        shards = {parameter: self.shard(parameter) for parameter in module.parameters()}
        for layer in list(module.modules()):
            shards_of_layer = {}
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    shards_of_layer[name] = shards[parameter]
            layer._parameters.update(shards_of_layer)
            layer.__class__ = self._class_that_reads(type(layer), shards_of_layer)
            if shards_of_layer and compute_dtype:
                layer.register_forward_pre_hook(self._cast, with_kwargs=True)

    # ---- what the stages fill in -----------------------------------------------------------------

    def gather(self, local: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Make a full tensor of `shape` from all ranks' flat shards, of which `local` is ours."""
        raise NotImplementedError

    def reduce(self, shard: nn.Parameter, gradient: torch.Tensor) -> None:
        """Start to reduce-scatter the mean of a full gradient; append to `pending`."""
        raise NotImplementedError

    def gradient_is_ready(self, full: torch.Tensor) -> None:
        """Called in backward when the gradient of a full weight is complete."""

    # ---- parameters ------------------------------------------------------------------------------

    def shard(self, full: torch.Tensor) -> nn.Parameter:
        """Make this rank's shard of a parameter."""
        local = cut(full, self.shard_count, dist.get_rank(self.group))
        shard = nn.Parameter(local, requires_grad=full.requires_grad)
        shard.full_shape = full.shape
        return shard

    def _class_that_reads(self, layer_class: type, names: Any) -> type:
        """The same class, but whoever reads one of these parameters calls `read`."""

        def reader(name: str) -> property:
            return property(lambda layer: self.read(layer._parameters[name]))

        readers = {name: reader(name) for name in names}
        return type(layer_class.__name__, (layer_class,), readers)

    def _cast(self, layer: nn.Module, inputs: Any, named: Any) -> Any:
        def lower(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value.to(self.compute_dtype)
            return value

        return tree_map(lower, (inputs, named))

    def weight(self, shard: nn.Parameter) -> torch.Tensor:
        """What a layer computes with: the full weight."""
        local = shard.detach()
        if self.compute_dtype and shard.is_floating_point():
            local = local.to(self.compute_dtype)
        return self.gather(local, shard.full_shape)

    def read(self, shard: nn.Parameter) -> torch.Tensor:
        """What a layer gets that reads its parameter."""
        return self.full[shard]

    # ---- a step ----------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._broadcast_buffers()
        for shard in self.parameters():
            full = self.weight(shard).requires_grad_(shard.requires_grad)
            full.shard = shard
            self.full[shard] = full
            if shard.requires_grad:
                full.register_post_accumulate_grad_hook(self.gradient_is_ready)
        return self.module(*inputs, **named)

    def _broadcast_buffers(self) -> None:
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def collect(self, keep: int = 0) -> None:
        """Wait for all reduce-scatters but the last `keep`, and add up what they brought."""
        while len(self.pending) > keep:
            shard, local_gradient, work = self.pending.pop(0)
            work.wait()
            if self.across:
                dist.all_reduce(local_gradient, group=self.across)
            if shard.grad is not None:
                local_gradient = shard.grad + local_gradient
            shard.grad = local_gradient

    def finish(self) -> None:
        """After backward: all ranks' gradients are in the shards."""
        for shard, full in self.full.items():
            if full.grad is not None:
                self.collect(keep=1)
                self.reduce(shard, full.grad)
        self.collect()

    # ---- full tensors ----------------------------------------------------------------------------

    def complete(self, shard: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor | None:
        """A shard's values, such as its gradient, of all ranks; what is no shard is full."""
        if values is None or not hasattr(shard, "full_shape"):
            return values
        return self.gather(values.detach(), shard.full_shape)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the module's own `state_dict()` would be, on every rank; all ranks call it."""
        local_state = self.module.state_dict(keep_vars=True)
        return {name: self.complete(local, local) for name, local in local_state.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """The full mean gradient of each parameter, or None; all ranks call it."""
        shards = self.module.named_parameters()
        return {name: self.complete(shard, shard.grad) for name, shard in shards}

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take over such a dict, which every rank has.

        Raises:
            ValueError: A tensor has the wrong shape.
        """
        state = dict(state)
        for name, shard in self.module.state_dict(keep_vars=True).items():
            if name in state and hasattr(shard, "full_shape"):
                if state[name].shape != shard.full_shape:
                    wanted, given = tuple(shard.full_shape), tuple(state[name].shape)
                    raise ValueError(f"{name} is {wanted}, not {given}")
                state[name] = self.shard(state[name])
        self.module.load_state_dict(state)


class Zero1(Shards):
    """An optimiser for one share: gather all weights, and reduce all gradients at the end."""

    def gather(self, local, shape):
        flat = local.new_empty(self.shard_count * len(local))
        dist.all_gather_into_tensor(flat, local, group=self.group)
        return flat[: shape.numel()].view(shape)

    def reduce(self, shard, gradient):
        mean = gradient.flatten().to(shard.dtype) / (self.shard_count * self.copy_count)
        padded = pad(mean, (0, self.shard_count * len(shard) - len(mean)))
        local = torch.empty_like(shard)
        work = dist.reduce_scatter_tensor(local, padded, group=self.group, async_op=True)
        self.pending.append((shard, local, work))


class Zero2(Zero1):
    """Gradients go as soon as they're complete."""

    def gradient_is_ready(self, full):
        self.collect(keep=1)
        self.reduce(full.shard, full.grad)
        full.grad = None


class Gather(torch.autograd.Function):
    """From a shard to the full weight; its gradient goes to all shards."""

    @staticmethod
    def forward(ctx: Any, shard: nn.Parameter, model: "Freeing") -> torch.Tensor:
        ctx.shard, ctx.model = shard, model
        full = model.weight(shard)
        model.shard_of[full.untyped_storage()] = shard
        return full

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        ctx.model.collect(keep=1)
        ctx.model.reduce(ctx.shard, gradient)
        return None, None


class Freeing(Zero1):
    """The frame of stage 3: subclasses say when a weight is gathered, and what autograd keeps.

    Attributes:
        shard_of: The shard of each full weight that is alive, by the weight's storage.
    """

    def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.shard_of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        for layer in module.modules():
            layer.register_forward_hook(self.free)

    def free(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Called when a layer returns."""
        raise NotImplementedError

    def pack(self, tensor: torch.Tensor) -> Any:
        """Called when autograd saves a tensor; returns what it keeps instead."""
        raise NotImplementedError

    def unpack(self, kept: Any) -> torch.Tensor:
        """Called when backward needs the tensor; `kept` is what `pack` returned."""
        raise NotImplementedError

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.full.clear()  # what a forward pass that failed has left
        self._broadcast_buffers()
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.module(*inputs, **named)

    def finish(self) -> None:
        self.collect()


class Zero3(Freeing):
    """ZeRO-3, for any module.

    Whoever reads a weight outside of `forward` gathers it, so all ranks have to read it.
    """

    def read(self, shard):
        if shard not in self.full:
            self.full[shard] = Gather.apply(shard, self)
        return self.full[shard]

    def free(self, layer, inputs, output):
        for shard in layer.parameters():
            self.full.pop(shard, None)

    def pack(self, tensor):
        shard = self.shard_of.get(tensor.untyped_storage())
        if shard is None:
            return tensor
        return shard, tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        shard, size, stride, offset = kept
        return self.weight(shard).as_strided(size, stride, offset)


class Ahead(Zero3):
    """While a layer computes, gather what was gathered next in the step before."""

    order: Sequence[nn.Parameter] = ()  # in which the step before gathered
    done: Sequence[nn.Parameter] = ()
    _nothing = None, None, None
    _coming: tuple = _nothing  # a shard, the flat tensor that is being filled, its work

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.order, self.done, self._coming = self.done, [], self._nothing
        return super().forward(*inputs, **named)

    def _begin(self, shard: nn.Parameter) -> tuple:
        flat = shard.new_empty(self.shard_count * len(shard))
        local = shard.detach()
        work = dist.all_gather_into_tensor(flat, local, self.group, async_op=True)
        return shard, flat, work

    def weight(self, shard: nn.Parameter) -> torch.Tensor:
        begun, flat, work = self._coming
        if begun is not shard:  # the first one; or the order has changed
            _, flat, work = self._begin(shard)
        work.wait()
        self.done.append(shard)
        self._coming = self._nothing
        if len(self.done) < len(self.order):
            self._coming = self._begin(self.order[len(self.done)])
        return flat[: shard.full_shape.numel()].view(shard.full_shape)


class Recompute(torch.autograd.Function):
    """Activation checkpointing: keep a block's input, and compute the block again in backward.

    `Recompute.apply(block, x)`; x has to require a gradient. torch's own, which also restores
    random numbers: `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`.
    """

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        y.backward(gradient)
        return None, x.grad


Wrap = Callable[[nn.Module], nn.Module]
