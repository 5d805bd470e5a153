"""What rules ask of a script: who calls what, below which conditions, and what depends on the rank.

All of it is read off the syntax tree of one file. Names are followed within that file only.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Node = TypeVar("Node", bound=ast.AST)
Block = list[ast.stmt]
Calls = list[ast.Call]
Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMES = (ast.Name, ast.Attribute)
_LEAVES = (ast.Return, ast.Continue, ast.Break)


def _words(text: str) -> set[str]:
    return set(text.split())


# Of torch.distributed: all ranks of a group have to call them.
COLLECTIVES = _words("""
    all_reduce all_gather all_gather_object all_gather_into_tensor broadcast broadcast_object_list
    reduce reduce_scatter reduce_scatter_tensor gather gather_object scatter scatter_object_list
    all_to_all all_to_all_single barrier monitored_barrier new_group
""")
# Names that are collectives whoever offers them: none of them means anything else.
_CLEAR = _words("""
    all_reduce all_gather all_gather_object all_gather_into_tensor broadcast_object_list
    reduce_scatter reduce_scatter_tensor gather_object all_to_all_single monitored_barrier
    wait_for_everyone
""")
DDP = {"DistributedDataParallel", "DDP"}
_SHARDED = {"FullyShardedDataParallel", "FSDP", "fully_shard"}
# What programs call their rank, or the answer to whether they are the first one.
_RANKS = _words("""
    rank local_rank global_rank world_rank node_rank proc_id rank_id ddp_rank ddp_local_rank
    dist_rank is_main_process is_main is_master is_master_process master_process main_process
    is_rank_0 is_rank0 is_rank_zero is_global_zero is_local_main_process is_local_master is_primary
    rank_zero is_first_rank is_chief is_zero_rank _is_rank_zero main_rank
""")
_ASKS_FOR_RANK = {"get_rank", "get_local_rank", "get_global_rank", "get_node_local_rank"}
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID"}
# Calls whose result depends on the rank if an argument does.
_TRANSPARENT = _words("int bool len range list tuple sorted enumerate tqdm")
_NO_RANK = (-1, None)  # what a rank is compared with to ask whether there is a group at all


class Meeting(NamedTuple):
    """A call that all ranks have to make."""

    name: str  # as a reader is told of it
    call: ast.Call

    @property
    def line(self) -> int:
        return self.call.lineno


class Script:
    """A parsed script."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parent: dict[ast.AST, ast.AST] = {}
        self.functions: dict[str, Function] = {}
        self.calls: Calls = []
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
            if isinstance(node, _FUNCTIONS):
                self.functions[node.name] = node
            if isinstance(node, ast.Call):
                self.calls.append(node)
        self.imported = _imported(tree)
        self.calls_of: dict[str, Calls] = {}  # by the last part of the name called
        for call in self.calls:
            name = self.called(call)
            calls_of_name = self.calls_of.setdefault(name, [])
            calls_of_name.append(call)
        self.by_rank = self._names_by_rank()
        self.global_ranks = self._global_ranks()
        self.replicas = self._names_made_by(DDP)
        self.shards = self._names_made_by(_SHARDED)
        self.wrapped = self.replicas | self.shards
        self.meeting = self._functions_that_meet()

    # --- names

    def name(self, node: ast.AST) -> str:
        """The dotted name of an expression, with imports resolved; empty if it has none."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first_part = self.imported.get(node.id, node.id)
        parts.append(first_part)
        parts.reverse()
        return ".".join(parts)

    def last_name(self, node: ast.AST) -> str:
        """The last part of an expression's name."""
        if isinstance(node, ast.Attribute):
            return node.attr
        name = self.name(node)
        _owner, _dot, last = name.rpartition(".")
        return last

    def called(self, call: ast.Call) -> str:
        """The last part of the name that is called."""
        return self.last_name(call.func)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a node stands in; None at the top of the script."""
        for above in self.above(node):
            if isinstance(above, _FUNCTIONS):
                return above
        return None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """All nodes that a node stands in, innermost first."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def nodes(self, kind: type[Node]) -> Iterator[Node]:
        """All nodes of one kind."""
        for node in ast.walk(self.tree):
            if isinstance(node, kind):
                yield node

    def is_distributed(self) -> bool:
        """Whether the script itself joins a group or wraps a model."""
        if self.wrapped:
            return True
        joining = {"init_process_group", *DDP, *_SHARDED}
        return not joining.isdisjoint(self.calls_of)

    def _names_made_by(self, makers: set[str]) -> set[str]:
        names = set()
        for call in self.calls:
            if self.called(call) not in makers:
                continue
            statement = self.parent[call]
            if isinstance(statement, ast.Assign):
                names.update(map(ast.unparse, statement.targets))
            elif isinstance(statement, ast.Expr) and call.args:  # in place, as fully_shard does
                model = call.args[0]
                names.add(ast.unparse(model))
        return names

    # --- the rank

    def depends_on_rank(self, node: ast.AST) -> bool:
        """Whether the value of an expression differs from rank to rank, by what rank it is."""
        if _asks_whether_there_is_a_group(node):
            return False
        if isinstance(node, ast.Name):
            if node.id in _RANKS:
                return True
            return node.id in self.by_rank
        if isinstance(node, ast.Attribute):
            if node.attr in _RANKS:
                return True
            return ast.unparse(node) in self.by_rank
        if isinstance(node, ast.Call):
            return self._returns_by_rank(node)
        if isinstance(node, ast.Subscript):
            if _constant(node.slice) in _RANKS:
                return True
            if self._variable_read(node) in _RANK_VARIABLES:
                return True
        children = ast.iter_child_nodes(node)
        return any(map(self.depends_on_rank, children))

    def _returns_by_rank(self, call: ast.Call) -> bool:
        """Whether what a call returns differs from rank to rank."""
        name = self.called(call)
        if name in _ASKS_FOR_RANK:
            return True
        if name in _RANKS:
            return True
        if self._variable_read(call) in _RANK_VARIABLES:
            return True
        if name not in _TRANSPARENT:
            return False
        return any(map(self.depends_on_rank, call.args))

    def _variable_read(self, node: ast.Subscript | ast.Call) -> object:
        """The name in `os.environ["RANK"]`, `os.getenv("RANK")` or `os.environ.get("RANK")`.

        Where no variable of the environment is read, a mark that equals nothing.
        """
        if isinstance(node, ast.Subscript):
            if self.last_name(node.value) != "environ":
                return ...
            return _constant(node.slice)
        called = self.name(node.func)
        if not called.endswith(("environ.get", "getenv")):
            return ...
        if not node.args:
            return ...
        return _constant(node.args[0])

    def _names_by_rank(self) -> set[str]:
        """Names that are only ever given values that depend on the rank."""
        self.by_rank: set[str] = set()
        assigned = _assignments(self.tree)
        while True:
            names = set()
            for name, values in assigned.items():
                if self._are_by_rank(values):
                    names.add(name)
            if names <= self.by_rank:
                return self.by_rank
            self.by_rank |= names

    def _are_by_rank(self, values: list[ast.expr]) -> bool:
        """Whether some of these values depend on the rank, and all others are constants."""
        some_depend = False
        for value in values:
            if self.depends_on_rank(value):
                some_depend = True
            elif not isinstance(value, ast.Constant):
                return False
        return some_depend

    def _global_ranks(self) -> set[str]:
        """Names whose value is the global rank itself, in a script that has several nodes."""
        self.global_ranks: set[str] = set()
        names = set()
        assigned = _assignments(self.tree)
        for name, values in assigned.items():
            if all(map(self.is_global_rank, values)):
                names.add(name)
        return names

    def is_global_rank(self, node: ast.AST) -> bool:
        """Whether an expression is the global rank, as `dist.get_rank()` is."""
        if isinstance(node, ast.Name):
            return node.id in self.global_ranks
        if not isinstance(node, ast.Subscript | ast.Call):
            return False
        if self._variable_read(node) == "RANK":
            return True
        if isinstance(node, ast.Subscript):
            return False
        arguments = node.args
        if self.called(node) == "int" and len(arguments) == 1:
            return self.is_global_rank(arguments[0])
        called = self.name(node.func)
        return called.endswith(("distributed.get_rank", "dist.get_rank"))

    # --- what has to be called by all ranks

    def meets(self, call: ast.Call) -> str:
        """How a call that all ranks have to make is named to a reader; empty for other calls."""
        name = self.called(call)
        if _has_group(call, name):
            return ""  # of a part of the ranks, which may well be asked for by rank
        if name in COLLECTIVES and self._is_of_torch(call):
            return name
        if name == "backward" and self.wrapped:
            if not isinstance(call.func, ast.Attribute):
                return ""
            return "backward()"
        target = ast.unparse(call.func)
        if target in self.wrapped:
            return f"the forward pass of {target}"
        if self._is_sharded_state(call, name):
            return f"{name}() of a sharded model"
        is_plain_name = isinstance(call.func, ast.Name)
        if is_plain_name and target in self.meeting:
            reason = self.meeting[target]
            return f"{name}(), which calls {reason}"
        return ""

    def _is_of_torch(self, call: ast.Call) -> bool:
        name = self.called(call)
        full_name = self.name(call.func)
        if "torch.distributed" in full_name:
            return True
        if full_name.startswith("dist."):
            return True
        if name not in _CLEAR:
            return False
        return isinstance(call.func, ast.Attribute)

    def _is_sharded_state(self, call: ast.Call, name: str) -> bool:
        if name in ("get_model_state_dict", "get_state_dict", "full_optim_state_dict"):
            return bool(self.shards)
        function = call.func
        if name != "state_dict":
            return False
        if not isinstance(function, ast.Attribute):
            return False
        model = ast.unparse(function.value)
        return model in self.shards

    def _functions_that_meet(self) -> dict[str, str]:
        """Functions of the script that all ranks have to call, each with the reason."""
        self.meeting: dict[str, str] = {}
        while True:
            known = len(self.meeting)
            for name, function in self.functions.items():
                if name in self.meeting or self._is_method(function):
                    continue
                reason = self._meets_within(function)
                if reason:
                    self.meeting[name] = reason
            if len(self.meeting) == known:  # none was added
                return self.meeting

    def _is_method(self, function: Function) -> bool:
        return isinstance(self.parent.get(function), ast.ClassDef)

    def _meets_within(self, function: Function) -> str:
        for meeting in self.meetings_in([function]):
            if self.function_of(meeting.call) is not function:
                continue
            if meeting.name.startswith(("the forward", "backward")):
                continue
            if self.rank_condition(meeting.call) is None:
                _caller, _which_calls, reason = meeting.name.partition("(), which calls ")
                return reason or meeting.name
        return ""

    # --- conditions

    def rank_condition(self, node: ast.AST) -> ast.If | ast.IfExp | None:
        """What lets only some ranks come to a node, by their number; None if nothing does."""
        child = node
        for above in self.above(node):
            if isinstance(above, _FUNCTIONS):
                return self._early_end(child, above.body)
            if self._lets_some_ranks_to(child, above):
                return above
            for block in blocks(above):
                if child in block:
                    early = self._early_end(child, block)
                    if early is not None:
                        return early
            child = above
        return None

    def _lets_some_ranks_to(self, child: ast.AST, condition: ast.AST) -> bool:
        """Whether this is a condition on the rank, below which only some ranks come to a child."""
        if not isinstance(condition, ast.If | ast.IfExp):
            return False
        test = condition.test
        if child is test:
            return False
        if not self.depends_on_rank(test):
            return False
        return not self.is_balanced(condition)

    def _early_end(self, node: ast.AST, block: Block) -> ast.If | None:
        """Above a statement in its block, an `if` on the rank that leaves the block."""
        for statement in block:
            if statement is node:
                return None
            if not isinstance(statement, ast.If):
                continue
            if statement.orelse:
                continue
            end = statement.body[-1]
            if not isinstance(end, _LEAVES):
                continue
            if self.depends_on_rank(statement.test):
                return statement
        return None

    def is_balanced(self, condition: ast.AST) -> bool:
        """Whether both branches of a condition make the same calls that all ranks have to make."""
        if not has_else(condition):
            return False
        names = self._names_met(condition.body)
        other_names = self._names_met(condition.orelse)
        return names == other_names

    def _names_met(self, block: Block) -> list[str]:
        return [meeting.name for meeting in self.meetings_in(block)]

    def meetings_in(self, block: Block) -> Iterator[Meeting]:
        """The calls in a block that all ranks have to make."""
        for call in calls_in(block):
            name = self.meets(call)
            if name:
                yield Meeting(name, call)


def _has_group(call: ast.Call, name: str) -> bool:
    """Whether a call of that name is given a group."""
    if name in ("barrier", "monitored_barrier") and call.args:
        return True
    keywords = [keyword.arg for keyword in call.keywords]
    return "group" in keywords or "process_group" in keywords


def _asks_whether_there_is_a_group(node: ast.AST) -> bool:
    """Whether a rank is compared with -1 or None, or asked whether it is at least 0."""
    if not isinstance(node, ast.Compare):
        return False
    if len(node.ops) != 1:
        return False
    operator = node.ops[0]
    compared_with = _constant(node.comparators[0])
    if compared_with in _NO_RANK:
        return True
    if compared_with != 0:
        return False
    return isinstance(operator, ast.GtE | ast.Lt)


def _constant(node: ast.AST) -> object:
    """The value of a number, a text or None; a mark that equals nothing for all else."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.UnaryOp):
        return ...
    if not isinstance(node.op, ast.USub):
        return ...
    if not isinstance(node.operand, ast.Constant):
        return ...
    return -node.operand.value


def _imported(tree: ast.Module) -> dict[str, str]:
    """By name in this script, the full name of what was imported."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                original = alias.name
                name = alias.asname or original
                names[name] = f"{node.module}.{original}"
    return names


def _assignments(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """By name, such as `rank` or `args.save`, all values that are assigned to it."""
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for node in ast.walk(tree):
        for target in _targets(node):
            name = ast.unparse(target)
            values[name].append(node.value)
    return values


def _targets(node: ast.AST) -> list[ast.expr]:
    """The names that a node assigns its value to."""
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, _NAMES)]
    if not isinstance(node, ast.AnnAssign):
        return []
    if node.value is None:
        return []
    if not isinstance(node.target, ast.Name):
        return []
    return [node.target]


def has_else(condition: ast.AST) -> bool:
    """Whether it is an `if` statement with a second branch."""
    if not isinstance(condition, ast.If):
        return False
    return bool(condition.orelse)


def blocks(node: ast.AST) -> Iterator[Block]:
    """The lists of statements that a statement has, such as those below an `if` and its `else`."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def calls_in(block: Block) -> Iterator[ast.Call]:
    """All calls in a list of statements."""
    for statement in block:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node
