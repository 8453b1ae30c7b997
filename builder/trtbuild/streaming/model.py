"""A transformers model that runs layer by layer: one decoder layer's weights in memory, or one vocabulary matrix.

A layer is run by the whole model's own forward, in which all other layers are empty stand-ins: masks, position embeddings and the
arguments that depend on a layer's type are therefore transformers' own, for every family. Knows not where tensors come from.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from trtbuild.errors import TrtbuildError
from trtbuild.places import place_of
from trtbuild.torch_model import Values, empty_model, fill_parameters, to_torch

#: Yields (Hugging Face name, values): of a decoder layer, or for None of everything outside of layers.
Tensors = Callable[[int | None], Generator[tuple[str, Values], None, None]]
#: Number of the option in malloc.h, and from which size on blocks are returned.
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 << 20
#: What the families call the norm after the last layer.
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm")


def compute_device() -> str:
    """Return where models run: "cuda" when PyTorch sees a GPU, else "cpu". The code is the same; it was run on CPUs only."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class LayerModel:
    """A transformers causal LM of which one decoder layer is in memory at a time.

    Memory: the largest decoder layer in `dtype`, or the head (while `logits` is used), besides norms, position matrices, the embeddings of
    one row of tokens, and what `tensors` yields at a time.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, *, dtype: str, device: str = "cpu") -> None:
        """Build the model without weights.

        Args:
            config: a Hugging Face config.json.
            tensors: yields the tensors of a decoder layer, or (None) of everything else.
            dtype: "float32", "bfloat16" or "float16", of weights and activations.
            device: "cpu" or "cuda".
        """
        _return_large_blocks()
        self.device, self.dtype = torch.device(device), getattr(torch, dtype)
        self.hidden_size: int = config.get("hidden_size") or config["n_embd"]
        self._model = empty_model(config, dtype)
        self._tensors = tensors
        base: Any = self._model.base_model
        name, layers = next((name, child) for name, child in base.named_children() if isinstance(child, nn.ModuleList))
        self._layers: list[nn.Module] = list(layers)
        self._prefix = f"{self._model.base_model_prefix}.{name}."
        parameters = dict(self._model.named_parameters())
        self._shapes = {key: tuple(parameter.shape) for key, parameter in parameters.items()}
        self._of_layer: list[dict[str, nn.Parameter]] = [{} for _ in layers]
        self._outside: dict[str, nn.Parameter] = {}
        for key, parameter in parameters.items():
            inside = key.startswith(self._prefix)
            target = self._of_layer[int(key[len(self._prefix) :].split(".")[0])] if inside else self._outside
            target[key] = parameter
        _drop(parameters)
        self._model.to(self.device)
        names = {id(parameter): name for name, parameter in self._outside.items()}
        embedding, head = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        embedding.padding_idx = None  # is only checked against the number of rows, of which few are there
        self._embedding = names[id(embedding.weight)]
        self._head = {names[id(parameter)] for parameter in head.parameters()}
        self._loaded: set[str] = set()
        self._stands: list[_Stand] = [_Stand() for _ in layers]
        setattr(base, name, nn.ModuleList(self._stands))
        self._base, self._norm = base, _final_norm(base)
        # transformers 5.24 renames the argument and warns about the old name.
        self._cache_argument = "cache" if "cache" in signature(base.forward).parameters else "past_key_values"

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self._layers)

    def layer_name(self, index: int) -> str:
        """Return the name of a decoder layer in the model, "model.layers.0"."""
        return f"{self._prefix}{index}"

    def embed(self, rows: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Yield the input of layer 0 for each row of token ids, [1, tokens, hidden]. Drops the head.

        Of the embedding, no more than the rows of the tokens that occur is in memory: the model sees their places in that small table.
        """
        self._need_head(False)
        with closing(self._tensors(None)) as tensors:
            table = next((values for name, values in tensors if place_of(name).parameter == self._embedding), None)
            if table is None:
                raise TrtbuildError(
                    f"the checkpoint has no tensor for {self._embedding}", hint="convert the model again"
                )
            parameter = self._outside[self._embedding]
            for row in rows:
                places = {token: place for place, token in enumerate(sorted(set(row)))}
                values = torch.cat([to_torch(table[token : token + 1]) for token in places])
                parameter.data = values.to(self.device, self.dtype)
                ids = torch.tensor([[places[token] for token in row]], device=self.device)
                yield self._run(0, lambda hidden, *_, **__: hidden, input_ids=ids)
                _drop({self._embedding: parameter})

    @contextmanager
    def layer(self, index: int) -> Iterator[nn.Module]:
        """Fill a decoder layer with its weights, and give its memory back in the end. Drops the head on entry.

        The module may be hooked, and its weights changed, as long as it is filled.
        """
        self._need_head(False)
        parameters = self._of_layer[index]
        try:
            self._fill(parameters, self._tensors(index), type(self._layers[index]).__name__)
            yield self._layers[index]
        finally:
            _drop(parameters)

    def run(self, index: int, hidden: Tensor, *, cache: Any = None) -> Tensor:
        """Return the output of a layer that is filled, [1, tokens, hidden].

        Args:
            index: number of the layer.
            hidden: its input, [1, tokens, hidden].
            cache: a transformers cache that sees the layer's keys and values.
        """
        kept = {} if cache is None else {self._cache_argument: cache}
        layer = self._layers[index]

        def job(_hidden: _Nothing, *arguments: Any, **named: Any) -> Any:
            return layer(hidden, *arguments, **named)

        return self._run(index, job, inputs_embeds=hidden, use_cache=cache is not None, **kept)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return final norm, head and the family's caps and factors of the last layer's output. Loads the head.

        Args:
            hidden: [1, tokens, hidden], all tokens of a row or some of them: tokens do not depend on one another here.

        Returns:
            [tokens, vocab] float32.
        """
        self._need_head(True)
        with torch.no_grad():
            answer = _Answer(self._norm(hidden))
            forward, self._base.forward = self._base.forward, lambda *_, **__: answer
            try:
                logits: Tensor = self._model(inputs_embeds=hidden, use_cache=False).logits
            finally:
                self._base.forward = forward
        return logits[0].float()

    def _run(self, index: int, job: Callable[..., Any], **arguments: Any) -> Tensor:
        """Return what the job makes of the arguments that the model gives to a layer."""
        self._stands[index].job = job
        try:
            with torch.no_grad():
                self._base(**{"use_cache": False, **arguments})
        except _DoneError as done:
            return done.output
        finally:
            self._stands[index].job = None
        raise AssertionError("the model never came to its layer")

    def _need_head(self, wanted: bool) -> None:
        """Have the head in memory or not, besides the small parameters outside of layers."""
        names = set(self._outside) - {self._embedding} - self._head | (self._head if wanted else set())
        surplus = self._loaded - names
        _drop({name: self._outside[name] for name in surplus})
        self._loaded -= surplus
        if missing := names - self._loaded:
            tensors = (
                pair for pair in self._tensors(None) if place_of(pair[0]).parameter not in self._shapes.keys() - missing
            )
            self._fill({name: self._outside[name] for name in sorted(missing)}, tensors, type(self._model).__name__)
            self._loaded |= missing

    def _fill(self, parameters: dict[str, nn.Parameter], tensors: Iterator[tuple[str, Any]], what: str) -> None:
        for name, parameter in parameters.items():
            parameter.data = torch.empty(self._shapes[name], dtype=self.dtype, device=self.device)
        with torch.no_grad():
            fill_parameters(what, parameters, tensors)


class _DoneError(Exception):
    """Ends a forward once its layer has run."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


class _Nothing:
    """What a stand-in returns: some families take the first element of what a layer returns."""

    def __getitem__(self, index: int) -> _Nothing:
        return self


class _Stand(nn.Module):  # type: ignore[misc]  # follow_imports=skip makes the base class Any
    """Stands in the place of a layer.

    Attributes:
        job: what ends the forward in this place, given the arguments of the layer; None to return nothing of use. A function, since a
            module would become a part of this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.job: Callable[..., Any] | None = None

    def forward(self, *arguments: Any, **named: Any) -> _Nothing:
        """Return nothing of use, or raise what ends the forward."""
        if self.job is None:
            return _Nothing()
        output = self.job(*arguments, **named)
        raise _DoneError(output if isinstance(output, Tensor) else output[0])


class _Answer:
    """What the model's head takes for the answer of the layers; all but the hidden states is absent."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, _name: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor | None:
        return None if index else self.last_hidden_state


def _final_norm(base: nn.Module) -> nn.Module:
    names = [name for name, _ in base.named_children() if name in _FINAL_NORMS]
    if len(names) != 1:
        raise TrtbuildError(
            f"{type(base).__name__} has no final norm that is known", hint=f"known names: {', '.join(_FINAL_NORMS)}"
        )
    return base.get_submodule(names[0])


def _return_large_blocks() -> None:
    """Have the allocator give blocks of 1 MiB and more back to the system when they are freed.

    glibc raises that threshold up to 32 MiB as such blocks are freed, and then keeps freed layers in its heap: several of them, as it happens.
    Setting it ends that (mallopt(3), M_MMAP_THRESHOLD).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library has no such heap
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _drop(parameters: Mapping[str, nn.Parameter]) -> None:
    """Give the memory of parameters back."""
    for parameter in parameters.values():
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
