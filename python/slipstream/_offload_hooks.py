"""How an offloaded model calls its streamer: `forward` of its modules is wrapped, and `_parameters` of a module is a dict
that notices each access to a streamed weight.

The first access to a weight inside a forward acquires it. The end of the innermost forward that runs then releases it.
So weights that a module takes from another one (tied weights, nn.MultiheadAttention) need no rule of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from ._errors import Error

if TYPE_CHECKING:
    from ._offload_session import Offloaded
    from ._offload_groups import Group

CHANGED = "the model is offloaded: {} cannot change now; call model.slip.restore() first"
HOOK_MAKERS = ("register_forward_pre_hook", "register_forward_hook")
REPLACED = ("forward", "_apply", "_save_to_state_dict", "_load_from_state_dict", "_parameters", "_modules", *HOOK_MAKERS)
MAX_DEPTH = 4  # tensors are looked for in tuples, lists and dicts of an output, nested up to this depth
COPIED = "an offloaded model cannot be copied or pickled: call model.slip.restore() first"


class Guarded(dict):  # type: ignore[type-arg]
    """A dict of parameters or modules of an offloaded model: it refuses changes and copies."""

    __slots__ = ("what",)

    def __init__(self, content: dict[str, Any], what: str) -> None:
        super().__init__(content)
        self.what = what

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Error(CHANGED.format(self.what))

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = _refuse  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(COPIED)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(COPIED)


class Parameters(Guarded):
    """Parameters of a module with streamed weights. An access by name acquires the weight."""

    __slots__ = ("groups", "session")

    def __init__(self, content: dict[str, Any], groups: dict[str, Group], session: Offloaded) -> None:
        super().__init__(content, "its parameters")
        self.groups, self.session = groups, session

    def __getitem__(self, name: str) -> Any:
        group = self.groups.get(name)
        if group is not None and not group.open:
            self.session._fetch(group)
        return dict.__getitem__(self, name)


def has_rows(module: torch.nn.Module) -> bool:
    """Whether the module reads only some rows of its weight, those that its input names."""
    return isinstance(module, torch.nn.Embedding) and type(module).forward is torch.nn.Embedding.forward \
        and "forward" not in module.__dict__ and module.max_norm is None


def needs_gradient(value: Any, depth: int = 0) -> bool:
    """Whether a tensor in inputs or outputs requires a gradient."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if depth == MAX_DEPTH:
        return False
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        value = getattr(value, "__dict__", {})
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return any(needs_gradient(each, depth + 1) for each in parts)


def refuse_training(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises an error if a call with gradients could train the model."""
    if model.training:
        raise Error("the offloaded model is in training mode: its weights are only read, they cannot be trained; call "
                    "model.eval(), or run it under torch.no_grad()")
    for name, param in model.named_parameters():
        if param.requires_grad:
            raise Error(f"'{name}' requires a gradient: the weights of an offloaded model cannot be trained")
    if needs_gradient((args, kwargs)):
        raise Error("an input of the offloaded model requires a gradient: its weights are not on the device any more when "
                    "backward() runs; use torch.no_grad(), or detach the input")


def own_copies(value: Any, shares: Callable[[torch.Tensor], bool], depth: int = 0) -> Any:
    """The output of a module, with copies of the tensors that point into the streamer's memory (views of weights)."""
    if isinstance(value, torch.Tensor):
        return value.clone() if shares(value) else value
    if depth == MAX_DEPTH:
        return value
    if isinstance(value, tuple):
        made = [own_copies(each, shares, depth + 1) for each in value]
        if all(new is old for new, old in zip(made, value)):
            return value
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    fields: Any = ()
    if isinstance(value, (list, dict)):
        fields = list(value.items() if isinstance(value, dict) else enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = list(vars(value).items()) if hasattr(value, "__dict__") else ()
    for key, old in fields:
        new = own_copies(old, shares, depth + 1)
        if new is not old:
            value.__setitem__(key, new) if isinstance(value, (list, dict)) else object.__setattr__(value, key, new)
    return value


def wrap(module: torch.nn.Module, number: int, session: Offloaded, table: Optional[Group]) -> None:
    """Wraps the forward of a module. `number`: of the module in the session. `table`: the weight of an embedding, which may
    read single rows of it."""
    original = module.forward
    opened = session._opened

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        outermost = not session._lock.inside()
        if outermost:
            session._begin_pass(number, args, kwargs)
        mark = len(opened)
        try:
            if table is not None and not table.open and args:
                session._show_rows(table, args[0])
            result = original(*args, **kwargs)
            if outermost and torch.is_grad_enabled() and needs_gradient(result):
                raise Error("an output of the offloaded model requires a gradient: its weights are not on the device any more "
                            "when backward() runs; use torch.no_grad(), or detach the inputs")
            if outermost or len(opened) > mark:  # it may be a view of a weight, which is released below
                result = own_copies(result, session._shares)
            return result
        except BaseException:
            if outermost:
                session._observation = None  # the call is incomplete, so its order and times are not used
            raise
        finally:
            try:
                if len(opened) > mark:
                    session._release(mark)
            finally:
                if outermost:
                    session._end_pass()

    module.__dict__["forward"] = forward


class HookScope:
    """Releases the weights that forward hooks of a module read (nn.utils.weight_norm, hooks of the program) after the last
    of these hooks. Without it they would be held until the end of the forward around this module."""

    def __init__(self, module: torch.nn.Module, session: Offloaded) -> None:
        self.module, self.session = module, session
        self.handles: list[Any] = []

    def install(self) -> None:
        """Begins before the first hook of the module and ends after the last one."""
        self.remove()
        module = self.module
        if not module._forward_pre_hooks and not module._forward_hooks:
            return
        self.handles.append(torch.nn.Module.register_forward_pre_hook(module, self.begin))
        module._forward_pre_hooks.move_to_end(self.handles[0].id, last=False)
        self.handles.append(torch.nn.Module.register_forward_hook(module, self.end))

    def remove(self) -> None:
        while self.handles:
            self.handles[-1].remove()
            self.handles.pop()

    def begin(self, *_: Any) -> None:
        if self.session._lock.inside():
            self.session._scopes.append((self, len(self.session._opened)))

    def end(self, _: Any, __: Any, output: Any) -> Any:
        session = self.session
        if not session._lock.inside():
            return None
        while session._scopes:
            scope, mark = session._scopes.pop()
            if scope is not self:
                continue  # an exception has ended that call
            if len(session._opened) > mark:
                output = own_copies(output, session._shares)
                session._release(mark)
            return output
        return None

    def register(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """For a hook that the program registers while the model is offloaded."""
        handle = getattr(type(self.module), name)(self.module, *args, **kwargs)
        self.install()
        return handle


def is_copy_or_conversion(function: Callable[..., Any], probes: list[torch.Tensor]) -> bool:
    """Whether the function of Module._apply makes new tensors. model.to("cuda:0") of a model on cuda:0 makes none."""
    return any(function(probe) is not probe for probe in probes)


def guard(module: torch.nn.Module, session: Offloaded) -> None:
    """Makes moves, conversions and changes of an offloaded model raise an error that names restore()."""

    def refuse_apply(function: Any, *_: Any, **__: Any) -> torch.nn.Module:
        if is_copy_or_conversion(function, session._host.probes):
            raise Error("the model is offloaded: it cannot be moved or converted (to, cuda, cpu, half, ...); call "
                        "model.slip.restore() first, and offload it again afterwards")
        return module

    own_save = module._save_to_state_dict

    def save(destination: Any, prefix: str, keep_vars: bool) -> None:
        session._in_this_process()
        groups = getattr(module._parameters, "groups", {})
        with session._lock.reading(), session._host.shown(groups.values()):
            own_save(destination, prefix, keep_vars)
            for name, group in groups.items():
                if isinstance(destination.get(prefix + name), torch.nn.Parameter):  # with keep_vars
                    destination[prefix + name] = group.params[0].data

    def refuse_load(*_: Any, **__: Any) -> None:
        raise Error("the model is offloaded: load_state_dict() cannot write its weights; call model.slip.restore() first")

    module.__dict__["_apply"] = refuse_apply
    module.__dict__["_save_to_state_dict"] = save
    module.__dict__["_load_from_state_dict"] = refuse_load
    module.__dict__["_modules"] = Guarded(module._modules, "its modules")


def scope_hooks(module: torch.nn.Module, scope: HookScope) -> None:
    for name in HOOK_MAKERS:
        module.__dict__[name] = functools.partial(scope.register, name)
    scope.install()


def unwrap(module: torch.nn.Module, before: dict[str, Any]) -> None:
    """Removes the wrappers from a module. `before`: the entries of its __dict__ for the names REPLACED; None: no entry."""
    for name, value in before.items():
        if value is None:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = value
