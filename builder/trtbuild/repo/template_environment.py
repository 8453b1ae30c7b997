"""The Jinja environment of the templates: strict about names, and each template is parsed and compiled once per process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame

from trtbuild.errors import TrtbuildError


class _NameCollector(CodeGenerator):
    """Compiles a template and notes, on the way, which names it takes from the context; as `jinja2.meta` does without compiling."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # Jinja's name
        self._names: set[str] = set()
        self.environment.names_of[str(self.name)] = self._names  # type: ignore[attr-defined] # a TemplateEnvironment
        super().visit_Template(node, frame)

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        used = {param for action, param in frame.symbols.loads.values() if action == "resolve" and param}
        self._names |= used - self.environment.globals.keys()


class TemplateEnvironment(jinja2.Environment):
    """Loads templates of one folder; a change of a file is noticed.

    Args:
        templates: the folder.
        filters: name -> function, besides Jinja's own.
    """

    code_generator_class = _NameCollector

    def __init__(self, templates: Path, *, filters: Mapping[str, Callable[[Any], str]]) -> None:
        super().__init__(
            loader=jinja2.FileSystemLoader(templates),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # the output is protobuf text, in which HTML escapes would be part of the value
        )
        self.templates = templates
        self.filters.update(filters)
        #: Template -> names that it takes from the context, of those that were compiled.
        self.names_of: dict[str, set[str]] = {}

    def check(self, values: Mapping[str, Any], files: Iterable[Path]) -> None:
        """Refuse templates that use names without a value.

        Args:
            values: the names that have one.
            files: the templates to look at.

        Raises:
            TrtbuildError: names every place.
        """
        missing = []
        for path in files:
            name = path.resolve().relative_to(self.templates).as_posix()
            self.get_template(name)
            if unknown := self.names_of.get(name, set()) - values.keys():
                missing += [f"{used} ({name}:{line})" for used, line in self._places(path, unknown)]
        if missing:
            raise TrtbuildError(
                f"templates use names that have no value: {', '.join(missing)}",
                hint="correct the template, or give RepoContext a field of that name",
            )

    def _places(self, path: Path, names: set[str]) -> list[tuple[str, int]]:
        tree = self.parse(path.read_text(encoding="utf-8"))
        unknown = meta.find_undeclared_variables(tree) & names
        return [(name.name, name.lineno) for name in tree.find_all(nodes.Name) if name.name in unknown]
