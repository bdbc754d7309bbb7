"""Read every import of a package from its source, so that a test can check the directions and find cycles."""

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

IMPORTERS = ("import_module", "__import__")
DOTTED = re.compile(r"[\w.]*(:[\w.]+)?")  # a module or a part of its name, not a sentence; also `module:name`


@dataclass(frozen=True)
class Import:
    """The module ``importer`` imports the module ``target``."""

    importer: str
    target: str
    line: int


@dataclass(frozen=True)
class Unresolved:
    """The module ``importer`` imports a module whose name is computed by ``expression``."""

    importer: str
    expression: str
    line: int


@dataclass
class ImportGraph:
    """The modules of a package and the imports between them.

    It sees import statements, absolute and relative, at any depth; calls of `import_module` and `__import__`; strings
    that name a module and are passed to any other call; and attributes of the package (`rgat.nn.RGATConv`). A package
    is the module of its `__init__.py`. Importing `a.b.c` runs `a` and `a.b` too; this is not an import of theirs.

    Args:
        root: the folder of the package.
        computed: for each module and expression, the modules that it can import.
    """

    root: Path
    computed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list, init=False)
    unresolved: list[Unresolved] = field(default_factory=list, init=False)

    def __post_init__(self):
        self.name = self.root.name
        self.modules = {self._module(path): path for path in sorted(self.root.rglob("*.py"))}
        assert self.name in self.modules, f"{self.root} must hold an __init__.py"
        for module, path in self.modules.items():
            self._read(module, ast.parse(path.read_text(encoding="utf-8")))

    def _module(self, path):
        parts = [self.name, *path.relative_to(self.root).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _read(self, module, tree):
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        aliases = set(IMPORTERS)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add(module, alias.name, node)
            elif isinstance(node, ast.ImportFrom):
                self._read_from(module, node)
                if node.module == "importlib":
                    aliases |= {alias.asname or alias.name for alias in node.names if alias.name in IMPORTERS}
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if isinstance(node, ast.Call):
                self._read_call(module, node, aliases)
            elif name in aliases and id(node) not in called:
                self._add_unresolved(module, node)  # the function gets another name
            elif isinstance(node, ast.Attribute) and id(node) not in inner:
                self._read_attribute(module, node)

    def _read_from(self, module, node):
        base = node.module or ""
        if node.level:
            base = self._absolute(module, "." * node.level + base)
        for alias in node.names:
            member = f"{base}.{alias.name}"
            self._add(module, member if member in self.modules else base, node)

    def _absolute(self, module, relative):
        """The absolute name of `.x` or `..x` as `module` sees it."""
        level = len(relative) - len(relative.lstrip("."))
        is_package = self.modules[module].name == "__init__.py"
        parts = module.split(".")
        parts = parts[: len(parts) - level + is_package]
        return ".".join([*parts, *filter(None, [relative[level:]])])

    def _read_call(self, module, node, aliases):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if function in aliases:
            self._read_importer(module, node)
            return
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            text, is_whole = _text(argument)
            if text in IMPORTERS or (isinstance(node.func, ast.Name) and function in ("exec", "eval")):
                self._add_unresolved(module, node)
            elif text.startswith(f"{self.name}.") and all(map(DOTTED.fullmatch, _constants(argument))):
                target = text.partition(":")[0]
                if not is_whole:
                    self._add_unresolved(module, argument)
                elif target in self.modules and not module.startswith(f"{target}."):  # its own package is there already
                    self._add(module, target, node)

    def _read_importer(self, module, node):
        """Read a call of `import_module(name, package)` or of `__import__(name)`."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        argument = node.args[0] if node.args else keywords.get("name", node)
        package = node.args[1] if len(node.args) > 1 else keywords.get("package")
        text, is_whole = _text(argument)
        if is_whole and not text.startswith("."):
            self._add(module, text, node)
        elif is_whole and getattr(package, "id", None) == "__package__":
            self._add(module, self._absolute(module, text), node)
        elif f"{self.name}.".startswith(text) or text.startswith((f"{self.name}.", ".")):
            self._add_unresolved(module, argument)

    def _read_attribute(self, module, node):
        """Record the module in a chain such as `rgat.nn.rgat.RGATConv`."""
        names, value = [], node
        while isinstance(value, ast.Attribute):
            names, value = [value.attr, *names], value.value
        if getattr(value, "id", None) == self.name:
            chain = [".".join([self.name, *names[:count]]) for count in range(len(names), 0, -1)]
            self._add(module, next((name for name in chain if name in self.modules), ""), node)

    def _add(self, module, target, node):
        if target.split(".")[0] == self.name:
            while target not in self.modules:  # a name in a module
                target = target.rpartition(".")[0] or self.name
            self.imports.append(Import(module, target, node.lineno))

    def _add_unresolved(self, module, node):
        expression = ast.unparse(node)
        if (module, expression) not in self.computed:
            self.unresolved.append(Unresolved(module, expression, node.lineno))
        for target in self.computed.get((module, expression), ()):
            assert target in self.modules, f"{target}, which {module} is said to import, is not a module"
            self.imports.append(Import(module, target, node.lineno))

    @cached_property
    def reachable(self):
        """For each module, all modules that it imports directly or through others."""
        targets = {module: set() for module in self.modules}
        for entry in self.imports:
            targets[entry.importer].add(entry.target)
        reachable = {}
        for module in self.modules:
            visited, waiting = set(), [module]
            while waiting:
                waiting += (new := targets[waiting.pop()] - visited)
                visited |= new
            reachable[module] = visited
        return reachable

    def cycles(self):
        """The strongly connected components with more than one module, or with a module that imports itself."""
        circles = {
            tuple(sorted(other for other in others if module in self.reachable[other]))
            for module, others in self.reachable.items()
            if module in others
        }
        return sorted(circles)

    def entry(self, module):
        """The entry of the root folder that holds a module."""
        return module.split(".")[1] if "." in module else "__init__"

    def to_the_right(self, chain, forbidden=()):
        """The imports from an entry of ``chain`` to one after it, or to one that ``forbidden`` pairs with it."""
        pairs = [(entry, self.entry(entry.importer), self.entry(entry.target)) for entry in self.imports]
        return [
            entry
            for entry, importer, target in pairs
            if chain.index(target) > chain.index(importer) or (importer, target) in forbidden
        ]


def _text(node):
    """The constant text that an expression begins with, and whether this is all of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, True
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return _text(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(value) for value in node.values]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
    else:
        return "", False
    text = ""
    for part, is_whole in parts:
        text += part
        if not is_whole:
            return text, False
    return text, True


def _constants(node):
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
