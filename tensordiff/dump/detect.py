"""Opening a dump whose format is not known.

``open_dump`` shows the path to each reader in turn (``readers.READERS``, most specific first). The first that
recognizes it opens it. Whatever else in the folder looks like tensors is reported as a problem (``leftovers``). A
folder of folders ``0``, ``1``, … holds the steps of one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from tensordiff.dump.checkpoint_parts import missing_from_index, missing_parts, single_part_problem
from tensordiff.dump.files import NOT_A_FILE, open_buffer, reason, why_not_fetched
from tensordiff.dump.folders import RANK_FOLDER, DumpPath
from tensordiff.dump.leftovers import is_checkpoint, leftovers
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.name_conventions import in_numbered_order, with_short_outputs
from tensordiff.dump.names import natural_key, step_of
from tensordiff.dump.ranks.joined_tensor import RankPart
from tensordiff.dump.ranks.ranks import join_ranks, join_shards
from tensordiff.dump.readers import PLAIN_FORMATS, SUFFIXES, readers
from tensordiff.errors import BadFile, DumpError, NotADump, printable
from tensordiff.util.mappings import install_handler
from tensordiff.util.remote import RemotePath
from tensordiff.util.remote.store import forget

_MOST_FOLDERS = 64
_MOST_LEVELS = 3
"""How many levels of subfolders are searched for the dump that the user may have meant."""
_KNOWN = ", ".join((*SUFFIXES, ".bin", ".ckpt"))


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open whatever dump lies at a path. Reads headers at most."""
    at = _split_selection(path if isinstance(path, Path) else Path(path))
    if isinstance(at.path, RemotePath):
        forget(at.path)
    install_handler()
    try:
        if not at.path.exists():
            raise NotADump(f"{printable(path)}: no such file or folder; check the path")
        if not at.is_folder and not at.path.is_file():
            raise BadFile(path, NOT_A_FILE)
        if (dump := _ask_readers(at)) is None and (dump := _open_numbered(at)) is None:
            raise NotADump(f"{printable(path)}: {_why_no_dump(at)}")
        if at.selected and dump.path != at.given:
            raise BadFile(at.path, f"is one run; open it without ::{printable(at.selected)}")
        return join_shards(dump.without_oversized_names().with_parameters_apart())
    except OSError as error:
        raise NotADump(
            f"{printable(path)}: cannot be opened ({reason(error)}); check the path and its permissions"
        ) from error


def _split_selection(path: Path) -> DumpPath:
    """Split off the part after ``::``, which selects one of several runs in a file."""
    file, colons, which = str(path).partition("::")
    if isinstance(path, RemotePath):
        return DumpPath(RemotePath(file), which) if colons else DumpPath(path)
    return DumpPath(Path(file), which) if colons and file and not path.exists() else DumpPath(path)


def _open_numbered(at: DumpPath) -> Dump | None:
    """Open folders of ranks or of steps, each a dump, as one dump."""
    dump = _open_ranks(at)
    return _open_steps(at) if dump is None else dump


def _ask_readers(at: DumpPath) -> Dump | None:
    """Open a path with the first reader that recognizes it.

    If all files of one plain format are bad, that format is left out and the others are tried. This holds only for
    formats that are files and nothing more: a folder whose own index cannot be read is not opened.
    """
    rest, bad = at, dict[str, BadFile]()
    for try_open in readers():
        try:
            dump = try_open(rest)
        except BadFile as error:
            name = Path(error.path).name
            if name not in rest.files or not name.lower().endswith(SUFFIXES):
                raise
            bad[name], rest = error, rest.without({name})
            continue
        if dump is not None and not (bad and dump.format not in PLAIN_FORMATS):
            unread = tuple(Problem(name, error.problem, is_unread=True) for name, error in bad.items())
            if bad:
                dump = replace(dump, problems=dump.problems + unread, files=dump.files | bad.keys())
            return _with_folder_contents(at, dump)
    if bad:
        raise next(iter(bad.values()))
    return None


def _with_folder_contents(at: DumpPath, dump: Dump) -> Dump:
    """Add what else lies in the dump's folder: missing parts, tensors in other formats, and leftovers."""
    if missing := tuple(missing_parts(dump.files) if at.is_folder else single_part_problem(at.path.name)):
        dump = replace(dump, problems=dump.problems + missing)
    if dump.format == "safetensors" and (missing := tuple(missing_from_index(at, dump))):
        dump = replace(dump, problems=dump.problems + missing)
    is_plain = dump.format in PLAIN_FORMATS
    if not at.is_folder:
        return with_short_outputs(dump) if is_plain else dump
    if is_plain and not is_checkpoint(at.files, dump.files):
        dump = _with_other_formats(at, dump)
    if dump.format in PLAIN_FORMATS:
        dump = with_short_outputs(in_numbered_order(dump))
    return _with_leftovers(at, dump, dump.files)


def _with_other_formats(at: DumpPath, dump: Dump) -> Dump:
    """Add tensors of the folder that are in other formats, such as ``inputs.safetensors`` beside ``outputs.pt``."""
    rest = at.without(dump.files)
    for try_open in readers():
        if not rest.files:
            break
        try:
            more = try_open(rest)
        except DumpError:
            continue  # its files are reported as leftovers
        if more is None or more.format not in PLAIN_FORMATS or more.format == dump.format:
            continue
        known = {entry.key for entry in dump.entries}
        twice = [entry for entry in more.entries if entry.key in known]
        why = f"has tensor {{!r:.120}} that {dump.format} files have too; only the first is read"
        dump = replace(
            dump,
            format=f"{dump.format}+{more.format}",
            entries=(*dump.entries, *(entry for entry in more.entries if entry.key not in known)),
            ordered=False,
            problems=(
                *dump.problems,
                *(problem for problem in more.problems if problem not in at.problems),
                *(Problem(sorted(more.files)[0], why.format(entry.name), is_unread=True) for entry in twice),
            ),
            files=dump.files | more.files,
        )
        rest = at.without(dump.files)
    return dump


def _with_leftovers(at: DumpPath, dump: Dump, taken: Collection[str]) -> Dump:
    left = tuple(leftovers(at, taken))
    return replace(dump, problems=dump.problems + left) if left else dump


def _open_below(at: DumpPath, name: str, otherwise: Callable[[DumpPath], Dump | None]) -> Dump | DumpError | None:
    """Open a subfolder with a reader, or else with ``otherwise``; an error is returned, so that others can be tried."""
    below = DumpPath(at.path / name)
    try:
        dump = _ask_readers(below)
        return otherwise(below) if dump is None else dump
    except DumpError as error:
        return error


def _open_steps(at: DumpPath) -> Dump | None:
    """Open folders ``0`` or ``step_0`` as the steps of one run; a step that cannot be opened is a problem."""
    if not at.is_folder:
        return None
    folders, duplicates = _step_folders(at)
    dumps: dict[int, Dump] = {}
    unread: list[Problem] = []
    errors: list[DumpError] = []
    for step, name in folders.items():
        opened = _open_below(at, name, _open_ranks)
        if isinstance(opened, Dump):
            dumps[step] = opened
        elif opened is None:
            why = "holds no tensors we know, though the other steps do; capture it again, or remove it"
            unread.append(Problem(name, why, is_unread=True))
        else:
            errors.append(opened)
            unread.append(_broken_folder(name, opened))
    if not dumps:
        if errors:
            raise errors[0]
        return None
    step_problems = (
        p._replace(file=f"{folders[step]}/{p.file}") for step, dump in dumps.items() for p in dump.problems
    )
    whole = replace(
        next(iter(dumps.values())),
        path=at.path,
        entries=tuple(e._replace(step=step) for step, dump in dumps.items() for e in dump.entries),
        ordered=all(dump.ordered for dump in dumps.values()),
        interrupted=any(dump.interrupted for dump in dumps.values()),
        problems=(*at.problems, *duplicates, *unread, *step_problems),
        files=frozenset(folders.values()),
    )
    return _with_leftovers(at, whole, {*folders.values(), *(problem.file for problem in duplicates)})


def _open_ranks(at: DumpPath) -> Dump | None:
    """Open folders ``rank0``, ``rank1``, each a dump, as one run."""
    matches = {name: match for name in at.folders if (match := RANK_FOLDER.fullmatch(name))} if at.is_folder else {}
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    first: Dump | None = None
    ordered = True
    for name, match in matches.items():
        dump = _open_below(at, name, _open_steps)
        if isinstance(dump, DumpError):
            problems.append(_broken_folder(name, dump))
            continue
        if dump is None:
            problems.append(Problem(name, "holds no tensors we know, though other ranks may; look into it", True))
            continue
        first, ordered = dump if first is None else first, ordered and dump.ordered
        parts += (RankPart(int(match[1]), entry) for entry in dump.entries)
        problems += (problem._replace(file=f"{name}/{problem.file}") for problem in dump.problems)
    if first is None:
        return None
    joined = join_ranks(parts)
    whole = replace(
        first,
        path=at.path,
        entries=joined.entries,
        ordered=ordered,
        problems=(*problems, *joined.problems),
        files=frozenset(matches),
    )
    return _with_leftovers(at, whole, matches)


def _broken_folder(name: str, error: DumpError) -> Problem:
    """The problem for a step or rank whose files cannot be opened."""
    if isinstance(error, BadFile):
        return Problem(f"{name}/{Path(error.path).name}", error.problem, is_unread=True)
    return Problem(name, f"cannot be opened ({error}); capture it again, or remove it", is_unread=True)


def _step_folders(at: DumpPath) -> tuple[dict[int, str], tuple[Problem, ...]]:
    """The folder of each step, and problems for folders left out because another one has the same number."""
    steps = {name: step for name in at.folders if (step := step_of(name)) is not None}
    folders: dict[int, str] = {}
    for name in sorted(steps, key=lambda name: (natural_key(name), name)):
        folders.setdefault(steps[name], name)
    duplicates = sorted(steps.keys() - set(folders.values()))
    return folders, tuple(
        Problem(name, f"is left out: {folders[steps[name]]} is step {steps[name]} too", is_unread=True)
        for name in duplicates
    )


def _why_no_dump(at: DumpPath) -> str:
    if not at.is_folder:
        if why := why_not_fetched(at.head):
            return why
        return f"is not a tensor file we know ({_KNOWN}); {_ways_out(at.path.suffix.lower())}"
    if not at.files and not at.folders:
        left = f"; {at.problems[0].file} {at.problems[0].sentence}" if at.problems else ""
        return f"is an empty folder; was the dump written somewhere else?{printable(left)}"
    if stand_in := _why_first_not_fetched(at):
        return stand_in
    return f"holds no tensors we know ({_KNOWN}){_dumps_below(at)}"


def _why_first_not_fetched(at: DumpPath) -> str:
    """Why a folder's first file is only a placeholder that was never downloaded; empty if there is none."""
    for name in at.with_suffix(".bin", ".ckpt")[:_MOST_FOLDERS]:
        try:
            open_buffer(at.path / name)
        except BadFile as error:
            return f"its {printable(name)} {error.problem}"
    return ""


_OTHER_KINDS = {
    ".onnx": "it is a model, whose run is captured with tensordiff capture onnx:FILE -o DIR",
    ".h5": "open it with h5py and save its arrays with numpy.savez",
    ".pkl": "a pickle may run code when it is opened: load it yourself and save its arrays with numpy.savez",
}
_ALIASES = {".hdf5": ".h5", ".keras": ".h5", ".pickle": ".pkl", ".joblib": ".pkl"}


def _ways_out(suffix: str) -> str:
    """What to do with a file of a kind that is not read."""
    return _OTHER_KINDS.get(_ALIASES.get(suffix, suffix), "save the tensors with torch.save or numpy.savez")


def _dumps_below(at: DumpPath) -> str:
    """A hint about subfolders that are dumps themselves."""
    dumps = _nearest_dumps(at)
    if len(dumps) == 1:
        return f"; did you mean {printable(at.path / dumps[0])}?"
    if dumps:
        names = ", ".join(map(printable, dumps[:3]))
        return (
            f"; {len(dumps)} of its folders are dumps of their own ({names}{', …' if len(dumps) > 3 else ''}): name one"
        )
    return ""


def _nearest_dumps(at: DumpPath) -> list[str]:
    """The subfolders that are dumps, on the first level that has any, by their relative paths."""
    names = at.folders[:_MOST_FOLDERS]
    for _ in range(_MOST_LEVELS):
        dumps, deeper = [], []
        for name in names[:_MOST_FOLDERS]:
            below = DumpPath(at.path / name)
            try:
                is_dump = _ask_readers(below) is not None or _open_numbered(below) is not None
            except (DumpError, OSError):
                continue
            if is_dump:
                dumps.append(name)
            elif not below.path.is_symlink():
                deeper += [f"{name}/{folder}" for folder in below.folders[:_MOST_FOLDERS]]
        if dumps:
            return dumps
        names = deeper
    return []
