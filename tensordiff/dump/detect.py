"""Opening a dump whose format is not known.

``open_dump`` shows the path to each reader in turn (``readers.READERS``, most particular first); the
first that knows it opens it, and what else looks like tensors beside it is a problem (``leftovers``). A
folder of folders ``0``, ``1``, … is the steps of one run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tensordiff.dump.files import NOT_A_FILE, open_buffer, why_stand_in
from tensordiff.dump.folders import RANK_FOLDER, DumpPath
from tensordiff.dump.leftovers import is_checkpoint, leftovers
from tensordiff.dump.model import Dump, Problem
from tensordiff.dump.names import natural_key, step_of
from tensordiff.dump.numbered_names import in_numbered_order
from tensordiff.dump.numbered_parts import missing_of_index, missing_parts, of_one_part
from tensordiff.dump.ranks.joined_tensor import RankPart
from tensordiff.dump.ranks.ranks import join_ranks, join_shards
from tensordiff.dump.readers import PLAIN_FORMATS, SUFFIXES, readers
from tensordiff.dump.short_outputs import with_short_outputs
from tensordiff.errors import BadFile, DumpError, NotADump, printable
from tensordiff.util.mappings import put_handler_first
from tensordiff.util.remote import RemotePath
from tensordiff.util.remote.store import forget

_LOOKED_INTO = 64
_DEEPEST = 3
"""Levels of folders that are looked through for what could have been meant."""
_KNOWN = ", ".join((*SUFFIXES, ".bin", ".ckpt"))


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open whatever dump lies at a path. Reads headers at most."""
    at = _selected(path if isinstance(path, Path) else Path(path))
    if isinstance(at.path, RemotePath):
        forget(at.path)
    put_handler_first()
    try:
        if not at.path.exists():
            raise NotADump(f"{printable(path)}: no such file or folder; check the path")
        if not at.is_folder and not at.path.is_file():
            raise BadFile(path, NOT_A_FILE)
        if (dump := _ask_readers(at)) is None and (dump := _open_numbered(at)) is None:
            raise NotADump(f"{printable(path)}: {_why_not(at)}")
        if at.selected and dump.path != at.given:
            raise BadFile(at.path, f"is one run; open it without ::{printable(at.selected)}")
        return join_shards(dump.with_fit_names().with_parameters_apart())
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotADump(f"{printable(path)}: cannot be opened ({why}); check the path and its permissions") from error


def _selected(path: Path) -> DumpPath:
    """A path, which may say after ``::`` which of several runs in one file is meant."""
    file, colons, which = str(path).partition("::")
    if isinstance(path, RemotePath):
        return DumpPath(RemotePath(file), which) if colons else DumpPath(path)
    return DumpPath(Path(file), which) if colons and file and not path.exists() else DumpPath(path)


def _open_numbered(at: DumpPath) -> Dump | None:
    """Folders of ranks or of steps, each a dump, as one."""
    dump = _open_ranks(at)
    return _open_steps(at) if dump is None else dump


def _ask_readers(at: DumpPath) -> Dump | None:
    """What the first reader that knows a path makes of it. Of several formats, one whose files are all bad is left out.

    That is so of formats which are files and no more; a folder whose own index cannot be read is not opened.
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
            return _with_the_rest(at, dump)
    if bad:
        raise next(iter(bad.values()))
    return None


def _with_the_rest(at: DumpPath, dump: Dump) -> Dump:
    """A dump with what else lies in its folder: parts that are missing, tensors in other formats, what nobody reads."""
    if gone := tuple(missing_parts(dump.files) if at.is_folder else of_one_part(at.path.name)):
        dump = replace(dump, problems=dump.problems + gone)
    if dump.format == "safetensors" and (gone := tuple(missing_of_index(at, dump))):
        dump = replace(dump, problems=dump.problems + gone)
    is_plain = dump.format in PLAIN_FORMATS
    if not at.is_folder:
        return with_short_outputs(dump) if is_plain else dump
    if is_plain and not is_checkpoint(at.files, dump.files):
        dump = _with_other_formats(at, dump)
    if dump.format in PLAIN_FORMATS:
        dump = with_short_outputs(in_numbered_order(dump))
    return _with_leftovers(at, dump, dump.files)


def _with_other_formats(at: DumpPath, dump: Dump) -> Dump:
    """A dump whose tensors lie in files of several formats, such as ``inputs.safetensors`` beside ``outputs.pt``."""
    rest = at.without(dump.files)
    for try_open in readers():
        if not rest.files:
            break
        try:
            more = try_open(rest)
        except DumpError:
            continue  # what is left is named
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


def _open_steps(at: DumpPath) -> Dump | None:
    """Folders ``0`` or ``step_0``, each a dump, as the steps of one run. A step that cannot be opened is a problem."""
    if not at.is_folder:
        return None
    folders, duplicates = _step_folders(at)
    dumps: dict[int, Dump] = {}
    unread: list[Problem] = []
    errors: list[DumpError] = []
    for step, name in folders.items():
        below = DumpPath(at.path / name)
        try:
            dump = _ask_readers(below)
            dump = _open_ranks(below) if dump is None else dump
        except DumpError as error:
            errors.append(error)
            unread.append(_broken_step(name, error))
        else:
            if dump is None:
                why = "holds no tensors we know, though the other steps do; capture it again, or remove it"
                unread.append(Problem(name, why, is_unread=True))
            else:
                dumps[step] = dump
    if not dumps:
        if errors:
            raise errors[0]
        return None
    within = (p._replace(file=f"{folders[step]}/{p.file}") for step, dump in dumps.items() for p in dump.problems)
    whole = replace(
        next(iter(dumps.values())),
        path=at.path,
        entries=tuple(e._replace(step=step) for step, dump in dumps.items() for e in dump.entries),
        ordered=all(dump.ordered for dump in dumps.values()),
        interrupted=any(dump.interrupted for dump in dumps.values()),
        problems=(*at.problems, *duplicates, *unread, *within),
        files=frozenset(folders.values()),
    )
    return _with_leftovers(at, whole, {*folders.values(), *(problem.file for problem in duplicates)})


def _open_ranks(at: DumpPath) -> Dump | None:
    """Folders ``rank0``, ``rank1``, each a dump, as one run."""
    matches = {name: match for name in at.folders if (match := RANK_FOLDER.fullmatch(name))} if at.is_folder else {}
    parts: list[RankPart] = []
    problems: list[Problem] = list(at.problems)
    first: Dump | None = None
    ordered = True
    for name, match in matches.items():
        below = DumpPath(at.path / name)
        try:
            dump = _ask_readers(below)
            dump = _open_steps(below) if dump is None else dump
        except DumpError as error:
            problems.append(_broken_step(name, error))
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


def _broken_step(name: str, error: DumpError) -> Problem:
    """A step whose files cannot be opened."""
    if isinstance(error, BadFile):
        return Problem(f"{name}/{Path(error.path).name}", error.problem, is_unread=True)
    return Problem(name, f"cannot be opened ({error}); capture it again, or remove it", is_unread=True)


def _step_folders(at: DumpPath) -> tuple[dict[int, str], tuple[Problem, ...]]:
    """The folder of each step, and the folders left out because another has that number too."""
    steps = {name: step for name in at.folders if (step := step_of(name)) is not None}
    folders: dict[int, str] = {}
    for name in sorted(steps, key=lambda name: (natural_key(name), name)):
        folders.setdefault(steps[name], name)
    duplicates = sorted(steps.keys() - set(folders.values()))
    return folders, tuple(
        Problem(name, f"is left out: {folders[steps[name]]} is step {steps[name]} too", is_unread=True)
        for name in duplicates
    )


def _why_not(at: DumpPath) -> str:
    if not at.is_folder:
        if why := why_stand_in(at.head):
            return why
        return f"is not a tensor file we know ({_KNOWN}); {_ways_out(at.path.suffix.lower())}"
    if not at.files and not at.folders:
        left = f"; {at.problems[0].file} {at.problems[0].sentence}" if at.problems else ""
        return f"is an empty folder; was the dump written somewhere else?{printable(left)}"
    if stand_in := _first_stand_in(at):
        return stand_in
    return f"holds no tensors we know ({_KNOWN}){_dumps_below(at)}"


def _first_stand_in(at: DumpPath) -> str:
    """What is said of a folder whose files were never fetched; nothing where none is so."""
    for name in at.with_suffix(".bin", ".ckpt")[:_LOOKED_INTO]:
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
    """What to open instead: the folders below this one that are dumps by themselves."""
    found = _nearest_dumps(at)
    if len(found) == 1:
        return f"; did you mean {printable(at.path / found[0])}?"
    if found:
        some = ", ".join(map(printable, found[:3]))
        return (
            f"; {len(found)} of its folders are dumps of their own ({some}{', …' if len(found) > 3 else ''}): name one"
        )
    return ""


def _nearest_dumps(at: DumpPath) -> list[str]:
    """The folders that are dumps, as few levels down as there are any, by their paths from here."""
    names = at.folders[:_LOOKED_INTO]
    for _ in range(_DEEPEST):
        found, deeper = [], []
        for name in names[:_LOOKED_INTO]:
            below = DumpPath(at.path / name)
            try:
                is_dump = _ask_readers(below) is not None or _open_numbered(below) is not None
            except (DumpError, OSError):
                continue
            if is_dump:
                found.append(name)
            elif not below.path.is_symlink():
                deeper += [f"{name}/{folder}" for folder in below.folders[:_LOOKED_INTO]]
        if found:
            return found
        names = deeper
    return []
