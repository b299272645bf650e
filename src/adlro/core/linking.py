"""How compiled code is put together: a function that Python calls is a whole, and what it calls are its parts.

Numba compiles every function by itself (a wrapper for Python, a wrapper for C, optimised code, machine code) and then
again inside each function that calls it. Here only wholes are compiled in this way. Of a part the types are inferred
and the code is written down; the whole links its parts, and is optimised and made into machine code once. An empty
cache is filled several times as fast (docs/decisions.md).

A function that both Python and compiled code call is compiled twice, as a whole and as a part.
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
"""How the names of the globals begin through which compiled code finds Python's objects."""


@final
class _Depth:
    """How many of our functions are being compiled, each for the one before. Numba's compiler lock guards it."""

    now = 0


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a part. Function passes keep it small; nothing else is done before it is linked."""

    def finalize(self) -> None:
        """Leave everything to the whole."""
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True


class WholeLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a whole, with all its parts."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Link the parts, optimise, and write machine code."""
        self._linking_libraries = with_parts(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        """Optimise, and drop the names through which parts would find Python's objects: hardly any part does."""
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT) and not variable.is_declaration:
                variable.linkage = Linkage.linkonce_odr
        super()._optimize_final_module()

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """For the cache: the machine code, and the names in it. Numba would add all code again for linking."""
        self._ensure_finalized()
        return self.name, "object", (self._get_compiled_object(), names_of_module(self._final_module).as_bitcode())


def names_of_module(module: Any) -> Any:
    """A module that defines the same functions as this one, with nothing in them."""
    defined = [each for each in module.functions if not each.is_declaration and each.linkage == Linkage.external]
    return parse_assembly("\n".join(f'define void @"{each.name}"() {{ ret void }}' for each in defined))


def with_parts(libraries: Iterable[Any]) -> list[Any]:
    """These libraries and the parts that they need, each before those that it calls: only what is called is linked."""
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
    """Stands for a part where Numba expects a function that Python can call."""


@register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(NativeLowering):  # type: ignore[misc]
    """Numba's last pass, which writes the code of a function: as a part inside another compilation, else as a whole."""

    _name = "adlro_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the function."""
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
    """Let the parts of a whole find Python's objects; Numba does it for the whole itself."""
    for variable in library._final_module.global_variables:
        if variable.name.startswith(ENVIRONMENT):
            environment = lookup_environment(variable.name)
            if environment is not None:
                library.codegen.set_env(variable.name, environment)


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with our last pass."""

    def define_pipelines(self) -> list[Any]:
        """The passes."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(Lowering if each is NativeLowering else each, what) for each, what in manager.passes]
        manager._finalized = False
        manager.finalize()
        return [manager]


def is_part(compile_result: Any) -> bool:
    """Whether this can only be linked into other code."""
    return isinstance(compile_result.library, PartLibrary)


def is_inside() -> bool:
    """Whether what is compiled now is compiled for another function."""
    return _Depth.now > 1


def plain(kind: Any) -> Any:
    """The type of an argument between compiled functions: constants as other numbers, signed integers as 64 bits.

    Numba would compile a function once for each constant and each width that it is called with.
    """
    if isinstance(kind, types.Literal) and isinstance(kind.literal_type, types.Integer | types.Boolean):
        kind = kind.literal_type
    return types.int64 if isinstance(kind, types.Integer) and cast(Any, kind).signed else kind


def link(dispatcher: Any) -> None:
    """Let a function, made with `Compiler`, be compiled as a whole when Python calls it, else as a part.

    Numba knows one result for each signature. We keep two, and show it the one that is needed at the moment.
    """
    compile_now, add_overload, call_template = dispatcher.compile, dispatcher.add_overload, dispatcher.get_call_template
    compile_result_of = dispatcher.get_compile_result
    wholes: dict[Any, Any] = {}
    parts: dict[Any, Any] = {}
    asked: dict[int, tuple[Any, Any]] = {}  # wholes by the identity of the signature, which is kept alive

    def show(signature: Any) -> None:
        """Show the kind of code that is needed here, or none if it must be compiled."""
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
        # Each call that passes the function as a value asks for it, and to hash the types of a View takes long.
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
