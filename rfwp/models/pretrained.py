"""Saving and loading: model.safetensors and config.json in a folder, in the package or on the Hugging Face hub. No pickle."""

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rfwp.atomic import whole_file, write_whole
from rfwp.config import ModelConfig, from_dict, to_dict
from rfwp.errors import InvalidFile, InvalidInput, RFWPError, missing_extra, reason, unknown, usable_device
from rfwp.models.packaged import packaged_models
from rfwp.version import __version__

WEIGHTS, CONFIG = "model.safetensors", "config.json"
WORDS = "words.txt"
"""Beside the weights of a language model: one word a line."""
DECISIVE = ("composition", "heads", "window", "scale_output", "wiring", "eps", "stride", "padding")
"""Attributes of layers that no shape shows and that change what a model computes."""

CARD = """---
library_name: rfwp
tags: [fast-weight-programmers]
---

A model of the library rfwp, after [the paper](https://arxiv.org/abs/2106.06295):

```python
model = rfwp.load("{repository}")
```
"""


class Pretrained(nn.Module):
    """A model that is made from one config and can be saved and loaded.

    With the extra `hub`, `push_to_hub("user/model")` uploads it, and ids work wherever folders do.
    """

    config_class: ClassVar[type]
    config: Any

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write model.safetensors and config.json into a folder; a failure leaves an earlier save there whole.

        A model that its config does not describe (added or swapped layers, parametrisations, mixed dtypes) is refused.
        """
        save_directory = Path(save_directory)
        if any(p.is_meta for p in self.parameters()):
            raise InvalidInput("a model on the meta device has no values to save; build it on a real device")
        self._check_described()
        tensors = _apart({name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()})
        text = json.dumps({"rfwp": __version__, "model": to_dict(self.config)}, indent=2) + "\n"
        try:
            save_directory.mkdir(parents=True, exist_ok=True)
            _write(save_directory, tensors, text)
        except (OSError, SafetensorError) as error:
            raise InvalidFile(f"cannot save to {save_directory}: {reason(error)}") from error

    def _check_described(self) -> None:
        """Nothing but the weights and the config is saved, so they must make this model again."""
        try:
            described = _without_values(type(self), self.config)
        except TypeError:
            # a subclass with arguments of its own comes back as the model that it extends
            described = _without_values(next(c for c in type(self).__mro__ if "config_class" in vars(c)), self.config)
        wrong = _other_modules(self, described) or _other_tensors(self.state_dict(), described.state_dict())
        if wrong:
            remedy = "undo it (parametrisations: torch.nn.utils.parametrize.remove_parametrizations; dtypes: model.float())"
            raise InvalidInput(
                f"save_pretrained: its config would not give this model back: {wrong[0]}; {remedy}, "
                "or keep the weights alone: torch.save(model.state_dict(), path)"
            )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool = False,
        commit_message: str = "Upload a model of rfwp",
    ) -> str:
        """Upload both files and a model card to a repository of the hub, made where there is none; the address of the commit."""
        try:
            # it takes a while to import, and most programs never need it
            from huggingface_hub import HfApi
        except ImportError:
            raise missing_extra("push_to_hub", "hub") from None
        api = HfApi(token=token)
        repository = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            write_whole(Path(folder) / "README.md", CARD.format(repository=repository).encode())
            return api.upload_folder(
                repo_id=repository,
                folder_path=Path(folder),
                commit_message=commit_message,
                revision=branch,
                create_pr=create_pr,
            )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **hub: Any,
    ) -> Self:
        """A saved model of this class, in eval mode, from a folder or from the hub (see `locate` for its keywords).

        It has the dtype that it was saved with, or the given one.
        """
        device = usable_device(device)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise InvalidInput(f"dtype={dtype!r} is no floating dtype; use for instance torch.bfloat16")
        folder = locate(pretrained_model_name_or_path, **hub)
        config = read_config(folder)
        if not isinstance(config, cls.config_class):
            kind = to_dict(config)["kind"]
            raise InvalidFile(f"{folder} holds a model of kind '{kind}', which {cls.__name__} cannot load; use rfwp.load")
        try:
            model = _without_values(cls, config)
        except RFWPError as error:
            raise InvalidFile(f"{folder / CONFIG}: {error}") from error
        model.load_state_dict(_read_weights(folder, model.state_dict()), assign=True)
        return model.to(device=device, dtype=dtype).eval()


class _Uninitialised(TorchFunctionMode):
    """Leaves out torch.nn.init: for tensors without values it imports PyTorch's compiler, a second or more, to do nothing."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _without_values(cls: type[nn.Module], config: Any) -> Any:
    """The model on the meta device: names, shapes and layers, made quickly."""
    with torch.device("meta"), _Uninitialised():
        return cls(config)


def locate(
    dir_or_hub_id: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """The folder of a saved model: the given one, that of a model that comes with rfwp, or a download from the hub.

    A folder that is here wins over both others. Of a hub repository only the files of a model are fetched.
    """
    if not isinstance(dir_or_hub_id, str | Path):
        raise InvalidInput(f"load takes a folder, a packaged model's name or a hub id, saw {dir_or_hub_id!r}")
    path = Path(dir_or_hub_id)
    if path.is_dir():
        return path
    if path.exists():
        raise InvalidFile(f"{path} is a file; give the folder that holds {WEIGHTS} and {CONFIG}")
    if isinstance(dir_or_hub_id, str) and re.fullmatch(r"\w[\w.-]*", dir_or_hub_id):
        packaged = packaged_models()
        if dir_or_hub_id not in packaged:
            raise unknown("folder or packaged model", dir_or_hub_id, packaged)
        return packaged[dir_or_hub_id]
    if isinstance(dir_or_hub_id, Path) or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", dir_or_hub_id):
        raise InvalidFile(f"no folder {dir_or_hub_id}; give the folder of a saved model, or a hub id like 'user/model'")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise missing_extra(f"there is no folder '{path}' here, and loading it from the hub", "hub") from None
    try:
        folder = snapshot_download(
            str(dir_or_hub_id),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            allow_patterns=[WEIGHTS, CONFIG, WORDS],
        )
    except (OSError, ValueError) as error:
        raise InvalidFile(f"no folder '{path}' here, and no such model from the hub: {reason(error)}") from error
    return Path(folder)


def read_config(folder: Path) -> ModelConfig:
    """The model's config from config.json."""
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidFile(f"no {CONFIG} in {folder}; give the folder of a saved model")
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(f"{path} is not readable as JSON: {reason(error)}") from error
    if isinstance(data, dict) and "run" in data:
        # agents have no best one
        saved = [folder / name for name in ("best", "last") if (folder / name / CONFIG).is_file()]
        raise InvalidFile(f"{folder} holds a run; " + (f"its model is in {saved[0]}" if saved else "it has no checkpoint yet"))
    if not isinstance(data, dict) or not isinstance(data.get("rfwp"), str) or "model" not in data:
        seen = ", ".join(list(data)[:4]) if isinstance(data, dict) else type(data).__name__
        raise InvalidFile(f"{path} was not written by rfwp: expected 'rfwp' and 'model', saw {seen or 'nothing'}")
    if _numbers(data["rfwp"]) > _numbers(__version__):
        written = f"{path} was written by rfwp {data['rfwp']}, this is {__version__}"
        raise InvalidFile(f"{written}; try: pip install --upgrade rfwp")
    try:
        config = from_dict(data["model"], "model")
    except RFWPError as error:
        raise InvalidFile(f"{path}: {error}") from error
    if not isinstance(config, ModelConfig):
        raise InvalidFile(f"{path}: kind '{data['model']['kind']}' is a part of a model, expected 'sequence' or 'agent'")
    return config


def _read_weights(folder: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of model.safetensors, if they are those that the model expects."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise InvalidFile(f"no {WEIGHTS} in {folder}; save the model again")
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidFile(f"{path} is truncated or no safetensors file: {reason(error)}") from error
    wrong = _other_tensors(tensors, expected)
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise InvalidFile(f"{path} does not belong to the {CONFIG} beside it: {'; '.join(wrong[:3])}{more}")
    return tensors


def _other_tensors(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """How names, shapes and dtypes differ from those of the expected tensors, whose dtype may be another one for all."""
    wrong = [f"{name} is missing" for name in expected if name not in tensors]
    wrong += [f"{name} is unknown" for name in tensors if name not in expected]
    for name, tensor in tensors.items():
        if name in expected and tensor.shape != expected[name].shape:
            wrong.append(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
        elif name in expected and not tensor.dtype.is_floating_point:
            wrong.append(f"{name} is {tensor.dtype}, expected a floating dtype")
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        wrong.append(f"dtypes are mixed: {', '.join(sorted({str(tensor.dtype) for tensor in tensors.values()}))}")
    return wrong


def _other_modules(model: nn.Module, expected: nn.Module) -> list[str]:
    """How the layers differ from the expected ones."""
    # a layer that stands in two places is saved twice
    seen, known = (dict(m.named_modules(remove_duplicate=False)) for m in (model, expected))
    wrong = []
    for path, module in seen.items():
        if path not in known:
            wrong.append(f"{path} ({type(module).__name__}) is unknown")
        elif path and type(module) is not type(known[path]) and not _only_dropout(module, known[path]):
            wrong.append(f"{path} is {type(module).__name__}, expected {type(known[path]).__name__}")
        for name in DECISIVE if path in known else ():
            if getattr(module, name, None) != getattr(known[path], name, None):
                wrong.append(f"{path} has another {name} than the config says")
    return wrong + [f"{path} is missing" for path in known if path not in seen]


def _only_dropout(module: nn.Module, expected: nn.Module) -> bool:
    """It plays no part in what a loaded model computes."""
    return isinstance(expected, nn.Dropout) and isinstance(module, nn.Dropout | nn.Identity)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, where weights that share memory (tied ones) are copies: the file holds every tensor for itself."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def _write(folder: Path, tensors: dict[str, Tensor], config: str) -> None:
    """Both files are on the disk before one moves into place; the earlier config comes back if the weights cannot follow."""
    path = folder / CONFIG
    earlier = path.read_bytes() if path.exists() else None
    moved = False
    try:
        with whole_file(folder / WEIGHTS) as file:
            file.write(safetensors.torch.save(tensors, metadata={"format": "pt"}))
            file.flush()
            os.fsync(file.fileno())
            write_whole(path, config.encode())
            moved = True
    except OSError:
        if moved:
            path.unlink() if earlier is None else write_whole(path, earlier)
        raise


def _numbers(text: str) -> tuple[int, ...]:
    """`0.2.0.dev1` counts as 0.2.0."""
    return tuple(int(number) for number in re.findall(r"\d+", text.split("+")[0])[:3])
