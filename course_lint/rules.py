"""The rules, one function each: what it looks for, what it says, which cell shows it happen."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from course_lint.script import DDP, Block, Function, Meeting, Script, blocks, calls_in, has_else

_LOADERS = ("loader", "batches", "train_dl", "train_iter", "train_data")
_FOR_EVALUATION = ("val", "test", "eval", "dev_")
_TELLS_OTHERS = ("reduce", "gather", "broadcast")
_LOOPS = ast.For | ast.While
_LEADS_AWAY = ast.Raise | ast.Return | ast.Break
_ENDS_ALL = ("KeyboardInterrupt", "StopIteration", "SystemExit")  # who catches these doesn't go on
_FIRST_RANK = ("rank", "master", "main_process")  # in names of decorators that let it in alone
_RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "multinomial"}
_ASKS_DATA = {"isnan", "isinf", "isfinite"}
# What the program or its arguments bring about, and so on every rank alike.
_ON_ALL_RANKS = {
    *("ImportError", "ModuleNotFoundError", "AttributeError", "NotImplementedError"),
    "FileNotFoundError",
}


@dataclass(frozen=True)
class Cell:
    """A place in the course where one sees it happen.

    Attributes:
        chapter: the notebook's name.
        section: the heading above the cell.
        code: words that stand in the cell.
    """

    chapter: str
    section: str
    code: str

    def __str__(self) -> str:
        return f"chapter {self.chapter[:2]}, “{self.section}”"  # in a wheel no file lies there


@dataclass(frozen=True)
class Finding:
    """What a rule has to say of a line."""

    line: int
    rule: str
    sentence: str
    shown: Cell


Findings = Iterator[Finding]

HANGS = Cell("08_it_hangs_lies_or_dies", "2 · Who never arrived?", "launch")
RUNS_OUT = Cell("07_data_batches_numerics", "3 · When a rank runs out of data", "Join")
SAMPLES = Cell("07_data_batches_numerics", "1 · Who is dealt which sample?", "set_epoch")
SAME_NUMBERS = Cell("07_data_batches_numerics", "5 · Four ranks, the same random numbers", "seed")
DEVICES = Cell("04_ddp_training", "`device_ids`", "device_ids=[dist.get_rank()]")
PAST = Cell("04_ddp_training", "2 · One model, or two that look alike?", "manual_seed")
CHECKPOINT = Cell("04_ddp_training", "5 · What belongs in a checkpoint?", "torch.save")
SHARDED = Cell("13_hold_less", "One rank alone", "dist.get_rank() == 0")


def meets_under_rank(script: Script) -> Findings:
    """A call that all ranks have to make, below an `if` that asks for the rank."""
    for call in script.calls:
        meeting = script.meets(call)
        if not meeting:
            continue
        condition = script.rank_condition(call)
        if condition is None:
            continue
        if _others_meet_it(script, call, condition):
            continue
        sentence = (
            f"{meeting} needs every rank, but the condition in line {condition.lineno} "
            "lets only some ranks come here, so these wait for the others for ever."
        )
        shown = HANGS
        if "sharded" in meeting:
            shown = SHARDED
        yield Finding(call.lineno, "meets-under-rank", sentence, shown)


def _others_meet_it(script: Script, call: ast.Call, condition: ast.AST) -> bool:
    """Whether the ranks that do not come to a call make their part of it elsewhere."""
    if _has_counterpart(script, call, condition):
        return True
    if _is_answered(script, call, condition):
        return True
    return _is_half_of_a_protocol(script, call, condition)


def _has_counterpart(script: Script, call: ast.Call, condition: ast.AST) -> bool:
    """Whether the ranks that do not come here make the same call elsewhere in the function.

    So does the well-known pair of barriers around a download, or what follows an early return.
    """
    function = script.function_of(call)
    meeting = script.meets(call)
    test = ast.unparse(condition.test)
    below = set(ast.walk(condition))
    is_below = call in below
    for other in script.calls:
        if script.function_of(other) is not function:
            continue
        if script.meets(other) != meeting:
            continue
        other_condition = script.rank_condition(other)
        if other_condition is None:
            continue
        if other_condition is condition:
            if (other in below) != is_below:
                return True  # one ends early after it, the others come to it later
        elif ast.unparse(other_condition.test) != test:
            return True
    return False


def _is_answered(script: Script, call: ast.Call, condition: ast.AST) -> bool:
    """Whether the other branch makes this call as often, or hands on the function called here."""
    if not has_else(condition):
        return False
    branch = condition.body
    other_branch = condition.orelse
    if call in calls_in(other_branch):
        branch, other_branch = other_branch, branch
    if call not in calls_in(branch):
        return False
    meeting = script.meets(call)
    times = _times_met(script, branch, meeting)
    if _times_met(script, other_branch, meeting) >= times:
        return True
    function = ast.unparse(call.func)
    handed_on = []
    for other in calls_in(other_branch):
        handed_on += map(ast.unparse, other.args)
    return function in handed_on


def _times_met(script: Script, block: Block, name: str) -> int:
    """How often a call of that name stands in a block."""
    times = 0
    for meeting in script.meetings_in(block):
        if meeting.name == name:
            times += 1
    return times


def _is_half_of_a_protocol(script: Script, call: ast.Call, condition: ast.AST) -> bool:
    """Whether a call with a sender or receiver stands, word for word, under a different condition.

    So does the signal that rank 0 sends in a callback, and that the others await in a loop.
    """
    sender = _keyword(call, "src")
    receiver = _keyword(call, "dst")
    if not sender and not receiver:
        return False
    text = ast.unparse(call)
    for other in script.calls:
        if ast.unparse(other) != text:
            continue
        if script.rank_condition(other) not in (None, condition):
            return True
    return False


def meets_under_data(script: Script) -> Findings:
    """A call that all ranks have to make, which some skip because of what their own data say."""
    for condition in script.nodes(ast.If):
        if not _asks_local_data(script, condition):
            continue
        meeting = _met_by_some(script, condition)
        if meeting is None:
            continue
        sentence = (
            f"The condition asks this rank's own data, so one rank may skip {meeting.name} in line "
            f"{meeting.line} while the others wait in it: let all ranks decide by an all_reduce."
        )
        yield Finding(condition.lineno, "meets-under-data", sentence, HANGS)


def _asks_local_data(script: Script, condition: ast.If) -> bool:
    """Whether a test asks a loss of this rank, and no rank has told it to the others."""
    asked = _data_asked(script, condition)
    if not asked:
        return False
    names = set()
    for node in asked:
        names |= _names_in(node)
    return names.isdisjoint(_names_told_to_others(script))


def _data_asked(script: Script, condition: ast.If) -> list[ast.AST]:
    """What a test calls `isnan` or the like of, and what loss it compares to end a loop."""
    end = condition.body[-1]
    ends_the_loop = isinstance(end, ast.Break)
    asked: list[ast.AST] = []
    for node in ast.walk(condition.test):
        if isinstance(node, ast.Call):
            function = node.func
            if script.last_name(function) in _ASKS_DATA:
                asked += node.args or _object_of_method(function)
        if ends_the_loop and isinstance(node, ast.Compare):
            compared = node.left
            if _is_loss(script, compared):
                asked.append(compared)
    return asked


def _object_of_method(function: ast.expr) -> list[ast.expr]:
    """What a method is called of, such as `loss` in `loss.isnan()`; nothing for a function."""
    if isinstance(function, ast.Attribute):
        return [function.value]
    return []


def _is_loss(script: Script, node: ast.AST) -> bool:
    return script.last_name(node).endswith("loss")


def _names_told_to_others(script: Script) -> set[str]:
    """The names that stand in collectives, or are given what these return."""
    names = set()
    for call in script.calls:
        called = script.called(call)
        if not _has_word(called, _TELLS_OTHERS):
            continue
        names |= _names_in(call)
        statement = script.parent.get(call)
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                names |= _names_in(target)
    return names


def _names_in(node: ast.AST) -> set[str]:
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            names.add(part.id)
    return names


def _has_word(text: str, words: Iterable[str]) -> bool:
    """Whether one of these words stands in a text."""
    return any(word in text for word in words)


def _met_by_some(script: Script, condition: ast.If) -> Meeting | None:
    """The first call for all ranks that is made below a condition, or skipped by its `continue`."""
    meeting = next(script.meetings_in(condition.body), None)
    if meeting and not condition.orelse:
        return meeting
    end = condition.body[-1]
    if not isinstance(end, ast.Continue | ast.Break):
        return None
    block = _block_of(script, condition)
    skipped = block  # by a break: of the rounds that do not come
    if isinstance(end, ast.Continue):
        place = block.index(condition)
        skipped = block[place + 1 :]
    return next(script.meetings_in(skipped), None)


def _block_of(script: Script, statement: ast.stmt) -> Block:
    for block in blocks(script.parent[statement]):
        if statement in block:
            return block
    return [statement]


def meets_under_exception(script: Script) -> Findings:
    """A call that all ranks have to make, and an exception of one rank that leads around it."""
    for attempt in script.nodes(ast.Try):
        meets_itself = any(script.meetings_in(attempt.body))
        for handler in attempt.handlers:
            is_of_one_rank = not _is_on_all_ranks(script, handler)
            if is_of_one_rank and not meets_itself:
                yield from _met_in_handler(script, handler)
            yield from _met_before_it_was_swallowed(script, attempt, handler)


def _is_on_all_ranks(script: Script, handler: ast.ExceptHandler) -> bool:
    """Whether what a handler catches is no matter of one rank."""
    if handler.type is None:
        return False
    types = [handler.type]
    if isinstance(handler.type, ast.Tuple):
        types = handler.type.elts
    names = set(map(script.last_name, types))
    return names <= _ON_ALL_RANKS


def _met_in_handler(script: Script, handler: ast.ExceptHandler) -> Findings:
    for meeting in script.meetings_in(handler.body):
        if script.called(meeting.call) == "destroy_process_group":
            continue
        sentence = (
            f"{meeting.name} needs every rank, but only a rank that has caught an exception comes "
            "here."
        )
        yield Finding(meeting.line, "meets-under-exception", sentence, HANGS)


def _met_before_it_was_swallowed(
    script: Script, attempt: ast.Try, handler: ast.ExceptHandler
) -> Findings:
    """A rank that catches its own exception goes on, and has skipped what the others wait in."""
    if not _goes_on(handler):
        return
    if not _in_loop(script, attempt):
        return
    for meeting in script.meetings_in(attempt.body):
        sentence = (
            f"A rank that catches an exception here goes on without {meeting.name} in line "
            f"{meeting.line}, in which the others wait: let it fail, or let all ranks decide."
        )
        yield Finding(handler.lineno, "meets-under-exception", sentence, HANGS)
        return


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler neither raises nor leaves the loop or the program."""
    caught = ""
    if handler.type:
        caught = ast.unparse(handler.type)
    if _has_word(caught, _ENDS_ALL):
        return False
    for node in ast.walk(handler):
        if isinstance(node, _LEADS_AWAY):
            return False
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(("exit", "abort")):
                return False
    return True


def _in_loop(script: Script, node: ast.AST) -> bool:
    return any(isinstance(above, _LOOPS) for above in script.above(node))


def meets_in_uneven_loop(script: Script) -> Findings:
    """A call that all ranks have to make, in a loop that has another length on each rank."""
    for loop in script.nodes(ast.For):
        if not script.depends_on_rank(loop.iter):
            continue
        meeting = next(script.meetings_in(loop.body), None)
        if meeting is None:
            continue
        sentence = (
            f"The length of this loop depends on the rank, and {meeting.name} in line "
            f"{meeting.line} needs every rank each time: the rank with the longest loop waits "
            "alone."
        )
        yield Finding(loop.lineno, "meets-in-uneven-loop", sentence, RUNS_OUT)


def no_set_epoch(script: Script) -> Findings:
    """A DistributedSampler that shuffles, in a script with epochs that never tells it which one."""
    if "set_epoch" in script.calls_of:
        return
    if not _has_epochs(script):
        return
    for call in script.calls_of.get("DistributedSampler", ()):
        if _keyword(call, "shuffle") == "False":
            continue
        if "epoch" in _keyword(call, "seed"):
            continue
        if _is_for_evaluation(script, call):
            continue
        sentence = (
            "This sampler is never told the epoch, so every epoch deals the same samples in the "
            "same order: call set_epoch(epoch) before each."
        )
        yield Finding(call.lineno, "no-set-epoch", sentence, SAMPLES)


def _is_for_evaluation(script: Script, sampler: ast.Call) -> bool:
    """Whether the name that a sampler is given to, or that of its data, says so."""
    target = script.parent.get(sampler)
    while isinstance(target, ast.IfExp | ast.Call | ast.keyword):
        target = script.parent.get(target)
    if target:
        assigned = ast.unparse(target)
        name, _equals, _value = assigned.partition("=")
        if _has_word(name.lower(), _FOR_EVALUATION):
            return True
    if not sampler.args:
        return False
    dataset = ast.unparse(sampler.args[0])
    return _has_word(dataset.lower(), _FOR_EVALUATION)


def _has_epochs(script: Script) -> bool:
    for loop in script.nodes(ast.For):
        target = ast.unparse(loop.target)
        values = ast.unparse(loop.iter)
        head = target + values
        if "epoch" in head.lower():
            return True
    return False


def _keyword(call: ast.Call, name: str) -> str:
    for keyword in call.keywords:
        if keyword.arg == name:
            return ast.unparse(keyword.value)
    return ""


def device_by_global_rank(script: Script) -> Findings:
    """A GPU chosen by the global rank, which on a second node counts on."""
    for call in script.calls:
        name = script.called(call)
        numbers = _gpu_numbers(call, name)
        if any(map(script.is_global_rank, numbers)):
            sentence = (
                f"{name} takes the global rank for the number of a GPU: on the second node there "
                "is no such GPU. Use the local rank, os.environ['LOCAL_RANK']."
            )
            yield Finding(call.lineno, "device-by-global-rank", sentence, DEVICES)


def _gpu_numbers(call: ast.Call, name: str) -> list[ast.expr]:
    """What a call of that name takes for numbers of GPUs."""
    if name == "set_device":
        return call.args[:1]
    if name not in DDP:
        return []
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "device_ids" and isinstance(value, ast.List):
            return value.elts
    return []


def same_random_numbers(script: Script) -> Findings:
    """Every rank seeded alike, in a script that draws random numbers for each batch."""
    if not script.is_distributed():
        return
    seed_line = _line_that_seeds_alike(script)
    if seed_line is None:
        return
    for call in script.calls:
        name = script.called(call)
        if name not in _RANDOM or _keyword(call, "generator"):
            continue
        if _is_torchs(script, call) and _draws_for_batch(script, call):
            sentence = (
                f"Every rank was seeded alike in line {seed_line}, so {name} draws the same "
                "numbers on every rank: add the rank to the seed once the model is made."
            )
            yield Finding(call.lineno, "same-random-numbers", sentence, SAME_NUMBERS)
            return


def _line_that_seeds_alike(script: Script) -> int | None:
    """The first line that seeds torch, unless some seed there depends on the rank."""
    lines = []
    for call in script.calls_of.get("manual_seed", ()):
        if not _is_torchs(script, call):
            continue
        if "rank" in ast.unparse(call):
            return None
        if any(map(script.depends_on_rank, call.args)):
            return None
        lines.append(call.lineno)
    if not lines:
        return None
    return lines[0]


def _is_torchs(script: Script, call: ast.Call) -> bool:
    called = script.name(call.func)
    return called.startswith("torch.")


def _draws_for_batch(script: Script, call: ast.Call) -> bool:
    """Whether a call stands in a loop over batches that also trains."""
    for loop in script.above(call):
        if not isinstance(loop, ast.For):
            continue
        batches = ast.unparse(loop.iter).lower()
        if not _has_word(batches, _LOADERS):
            continue
        for inner in calls_in(loop.body):
            if script.called(inner) == "backward":
                return True
    return False


def unseeded_split(script: Script) -> Findings:
    """A random split of the data that every rank draws for itself."""
    if not script.is_distributed():
        return
    for name in script.calls_of:
        if "seed" in name and "get" not in name:
            return
    for call in script.calls_of.get("random_split", ()):
        if _keyword(call, "generator"):
            continue
        if script.rank_condition(call) is not None:
            continue
        sentence = (
            "No seed is set, so every rank splits the data in a way of its own, and what one rank "
            "holds out another one trains on: hand in a generator with a fixed seed."
        )
        yield Finding(call.lineno, "unseeded-split", sentence, SAME_NUMBERS)


def every_rank_saves(script: Script) -> Findings:
    """A checkpoint that all ranks write to one path."""
    if not script.is_distributed():
        return
    for call in script.calls:
        if script.name(call.func) != "torch.save":
            continue
        if len(call.args) < 2:
            continue
        path = ast.unparse(call.args[1])
        if "rank" in path:
            continue
        if _is_of_one_rank(script, call, ()):
            continue
        sentence = (
            f"Every rank writes {path}, all at once, so the file may be torn: let rank 0 save, and "
            "the others wait at a barrier."
        )
        yield Finding(call.lineno, "every-rank-saves", sentence, CHECKPOINT)


def _is_of_one_rank(script: Script, node: ast.AST, seen: tuple[str, ...]) -> bool:
    """Whether only some ranks come to a node, as far as this file tells."""
    if script.rank_condition(node) is not None:
        return True
    function = script.function_of(node)
    if function is None:
        return False
    for decorator in map(ast.unparse, function.decorator_list):
        if _has_word(decorator, _FIRST_RANK):
            return True
    callers = script.calls_of.get(function.name, ())
    if not callers or function.name in seen:
        return not _is_main(script, function)
    seen = (*seen, function.name)
    return all(_is_of_one_rank(script, call, seen) for call in callers)


def _is_main(script: Script, function: ast.AST) -> bool:
    """Whether a function that nobody calls by name is run all the same, as `mp.spawn` does."""
    for starter in ("spawn", "launch", "Process", "main"):
        for call in script.calls_of.get(starter, ()):
            by_keyword = [keyword.value for keyword in call.keywords]
            for argument in call.args + by_keyword:
                if isinstance(argument, ast.Name) and argument.id == function.name:
                    return True
    return False


def past_the_wrapper(script: Script) -> Findings:
    """A model that was wrapped, and is trained by its inner module all the same."""
    for call in script.calls:
        if script.called(call) not in DDP:
            continue
        above = script.parent[call]
        if isinstance(above, ast.Attribute) and above.attr == "module":
            wrapper = ast.unparse(call.func)
            yield _past(call.lineno, wrapper)
    for node in script.nodes(ast.Assign):
        if not _is_inner_module(script, node.value):
            continue
        inner = ast.unparse(node.targets[0])
        wrapper = ast.unparse(node.value.value)
        function = script.function_of(node)
        if _trains_past(function, inner, wrapper):
            yield _past(node.lineno, wrapper)


def _is_inner_module(script: Script, node: ast.AST) -> bool:
    """Whether an expression is the inner module of a wrapped model, such as `model.module`."""
    if not isinstance(node, ast.Attribute):
        return False
    if node.attr != "module":
        return False
    return ast.unparse(node.value) in script.replicas


def _trains_past(function: Function | None, inner: str, wrapper: str) -> bool:
    """Whether a function that trains calls the inner module of a model, and never its wrapper."""
    if function is None:
        return False
    called = set()
    for call in calls_in(function.body):
        called.add(ast.unparse(call.func))
    if inner not in called:
        return False
    if wrapper in called:
        return False
    return any(name.endswith(".backward") for name in called)


def _past(line: int, wrapper: str) -> Finding:
    sentence = (
        f"The forward pass goes past {wrapper}, which averages gradients only where it is called "
        "itself, so every rank trains a model of its own."
    )
    return Finding(line, "past-the-wrapper", sentence, PAST)


Rule = Callable[[Script], Findings]
RULES: tuple[Rule, ...] = (
    meets_under_rank,
    meets_under_data,
    meets_under_exception,
    meets_in_uneven_loop,
    no_set_epoch,
    device_by_global_rank,
    same_random_numbers,
    unseeded_split,
    every_rank_saves,
    past_the_wrapper,
)
