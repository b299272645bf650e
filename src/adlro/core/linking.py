"""How compiled code is linked: a function that Python calls is a whole, and the functions that it calls are its parts.

Numba compiles every function on its own (Python wrapper, C wrapper, optimisation, machine code) and then again inside
each of its callers. Here only wholes are compiled like that. For a part we only infer types and generate code; the
whole links its parts and is optimised and compiled to machine code once. This fills an empty cache several times as
fast (docs/decisions.md).

A function that is called both from Python and from compiled code is compiled twice, as a whole and as a part.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, cast, final

from llvmlite.binding import Linkage, parse_assembly
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import NativeLowering

ENVIRONMENT: Final = "_ZN08NumbaEnv"
"""Prefix of the globals through which compiled code finds Python objects."""


@final
class _Depth:
    """Nesting depth of our compilations: a function compiles its callees. Guarded by Numba's compiler lock."""

    now = 0


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a part. Only function passes run on it, which keep it small; the rest happens after linking."""

    def finalize(self) -> None:
        """Generate no machine code: the whole does that."""
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True


class WholeLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a whole with all its parts."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Link the parts, optimise, and generate machine code."""
        self._linking_libraries = with_parts(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        """Optimise, and drop the globals through which parts would find Python objects: few parts use them."""
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT) and not variable.is_declaration:
                variable.linkage = Linkage.linkonce_odr
        super()._optimize_final_module()

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """The machine code and its symbol names, for the cache. Numba would also store all code again for linking."""
        self._ensure_finalized()
        return self.name, "object", (self._get_compiled_object(), names_of_module(self._final_module).as_bitcode())


def names_of_module(module: Any) -> Any:
    """A module that declares the same functions as this one, with empty bodies."""
    defined = [each for each in module.functions if not each.is_declaration and each.linkage == Linkage.external]
    return parse_assembly("\n".join(f'define void @"{each.name}"() {{ ret void }}' for each in defined))


def with_parts(libraries: Iterable[Any]) -> list[Any]:
    """These libraries and all parts that they need, callers before callees, so that only called code is linked."""
    found: dict[Any, None] = {}

    def visit(library: Any) -> None:
        if library in found:
            return
        if isinstance(library, PartLibrary):
            for each in library._linking_libraries:
                visit(each)
        found[library] = None

    for library in libraries:
        visit(library)
    return list(reversed(found))


class EntryOfPart:
    """Placeholder for a part where Numba expects an entry point for Python."""


@register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(NativeLowering):  # type: ignore[misc]
    """Numba's last pass, which generates code: a part if another compilation is in progress, else a whole."""

    _name = "adlro_lowering"

    def run_pass(self, state: Any) -> bool:
        """Generate the code of the function."""
        is_part = _Depth.now > 1
        make = PartLibrary if is_part else WholeLibrary
        library = state.library = make(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        if is_part:
            state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = state.flags.no_compile = True
        super().run_pass(state)
        if is_part:
            entry = EntryOfPart()
            library.finalize()
            state.targetctx.insert_user_function(entry, state["cr"].fndesc, [library])
            state["cr"] = state["cr"]._replace(cfunc=entry)
        else:
            set_environments(library)
        return True


def set_environments(library: Any) -> None:
    """Let the parts of a whole find Python objects. Numba does this only for the whole itself."""
    for variable in library._final_module.global_variables:
        if variable.name.startswith(ENVIRONMENT):
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with our last pass."""

    def define_pipelines(self) -> list[Any]:
        """The compiler passes."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(Lowering if each is NativeLowering else each, what) for each, what in manager.passes]
        manager._finalized = False
        manager.finalize()
        return [manager]


def is_part(compile_result: Any) -> bool:
    """Whether this code can only be linked into other code."""
    return isinstance(compile_result.library, PartLibrary)


def is_inside() -> bool:
    """Whether the current compilation is for another function."""
    return _Depth.now > 1


def plain(kind: Any) -> Any:
    """The type of an argument between compiled functions: constants become plain numbers, signed integers 64 bits wide.

    Otherwise Numba would compile a function once for each constant and integer width that it is called with.
    """
    if isinstance(kind, types.Literal) and isinstance(kind.literal_type, types.Integer | types.Boolean):
        kind = kind.literal_type
    return types.int64 if isinstance(kind, types.Integer) and cast(Any, kind).signed else kind


def link(dispatcher: Any) -> None:
    """Compile a function made with `Compiler` as a whole if Python calls it, and as a part otherwise.

    Numba keeps one result for each signature. We keep two and show Numba the one that is needed now.
    """
    compile_now, add_overload, call_template = dispatcher.compile, dispatcher.add_overload, dispatcher.get_call_template
    compile_result_of = dispatcher.get_compile_result
    wholes: dict[Any, Any] = {}
    parts: dict[Any, Any] = {}
    asked: dict[int, tuple[Any, Any]] = {}  # wholes by id of the signature object, which is kept alive here

    def show(signature: Any) -> None:
        """Show Numba the kind of code that is needed here, or nothing if it must be compiled."""
        arguments = tuple(normalize_signature(signature)[0])
        dispatcher.overloads.pop(arguments, None)
        known = parts if _Depth.now else wholes
        if arguments in known:
            dispatcher.overloads[arguments] = known[arguments]

    def compile_(signature: Any) -> Any:
        with global_compiler_lock:
            show(signature)
            _Depth.now += 1
            try:
                return compile_now(signature)
            finally:
                _Depth.now -= 1

    def add(compile_result: Any) -> None:
        arguments = tuple(compile_result.signature.args)
        if is_part(compile_result):
            dispatcher.overloads[arguments] = parts[arguments] = compile_result
        else:
            wholes[arguments] = compile_result
            add_overload(compile_result)

    def get_compile_result(signature: Any) -> Any:
        # Every call that passes the function as a value comes here, and hashing the types of a View is slow.
        if _Depth.now == 0 and id(signature) in asked:
            return asked[id(signature)][1]
        with global_compiler_lock:
            show(signature)
            found = compile_result_of(signature)
            if not is_part(found):
                asked[id(signature)] = signature, found
                # Each call asks for two addresses, and LLVM takes long to find one.
                found.library.get_pointer_to_function = cache(found.library.get_pointer_to_function)
            return found

    def get_call_template(arguments: Iterable[Any], keywords: dict[str, Any]) -> Any:
        widened = tuple(map(plain, arguments))
        return call_template(widened, {name: plain(kind) for name, kind in keywords.items()})

    dispatcher.compile, dispatcher.add_overload = compile_, add
    dispatcher.get_call_template, dispatcher.get_compile_result = get_call_template, get_compile_result
