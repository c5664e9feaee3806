"""`submit`: runs a bench or tune as a job of a cluster, after checking here everything that can be checked without data."""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.cli import EXIT_INCOMPLETE
from harness.cli.parser import build_parser
from harness.cli.request import read, read_tune
from harness.commands.prepare import read_named
from harness.errors import UserError, unknown
from harness.paths import PYTHON
from harness.planning.point import load_point
from harness.planning.request import BESIDE, YAML
from harness.search.space import requested_space
from harness.store import has_password
from harness.store.database import parsed
from harness.tasks.user_task import load_user_task
from harness.yaml_files import load_yaml

COMMANDS = ("bench", "tune")
SECRET = re.compile(r"PASSW|SECRET|ACCESS_KEY|API_KEY|CREDENTIAL|TOKEN$", re.IGNORECASE)
"""Of a variable's name."""


class RuntimeEnv(BaseModel):
    """The keys of Ray's runtime environment that are checked here; Ray checks the rest."""

    model_config = ConfigDict(frozen=True, extra="allow")

    working_dir: str | None = None
    env_vars: dict[str, str] = {}


def submit(args: argparse.Namespace) -> int:
    """Check the command, submit it and print how to follow it. With --follow, print its output and return its exit status."""
    words: list[str] = args.words
    if words[0] not in COMMANDS:
        raise unknown("command", words[0], COMMANDS, "submit")
    late = [flag for flag in ("--follow", "--id", "--runtime-env") if flag in words]
    if late:
        raise UserError(f"submit: {late[0]} goes before the command, as in harness submit {late[0]} ... {words[0]} ...")
    inner = build_parser().parse_args(words)
    _check_words(inner, words)
    _check_persistent(inner)
    runtime_env = _runtime_env(args.runtime_env)
    name, metadata = _checked(inner)
    id = args.id or f"harness-{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", id):
        raise UserError(f"--id {id}: a job's name has letters, digits, '-', '_' and '.' only.")
    uploads = list(_uploads(inner, runtime_env.get("working_dir")))

    from harness.cluster.jobs import Jobs

    jobs = Jobs(args.cluster)
    with tempfile.TemporaryDirectory() as folder:
        for file in uploads:
            target = Path(folder) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        if uploads:
            runtime_env["working_dir"] = folder
        entrypoint = shlex.join(["harness", *words, "--address", "auto", "--yes"])
        jobs.submit(id, entrypoint, metadata | {"command": shlex.join(["harness", *words])}, runtime_env)
    print(
        f"Job {id} is submitted.\n"
        f"Follow it:  {jobs.command('logs --follow', id)}\n"
        f"Stop it:    {jobs.command('stop', id)}    # recorded stages are kept; the same command resumes\n"
        f"Dashboard:  {jobs.address}/#/jobs/{id}    (its token: ray get-auth-token)",
        flush=True,
    )
    return _follow(jobs, id) if args.follow else 0


def _follow(jobs: Any, id: str) -> int:
    """The job's exit status once it ended."""
    try:
        ended = jobs.follow(id, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the job {id} keeps running; the lines above say how to stop it.") from None
    if ended.status == "SUCCEEDED":
        return 0
    if ended.exit_code == 127:
        raise UserError(f"Job {id}: the head node has no command 'harness'; install it there, see deploy/README.md.")
    print(f"harness: job {id} {ended.status.lower()}: {ended.reason}", file=sys.stderr)
    if ended.status == "STOPPED":  # by 'ray job stop', which sends SIGTERM and forgets the status
        return 128 + signal.SIGTERM
    return ended.exit_code if ended.exit_code and ended.exit_code > 0 else EXIT_INCOMPLETE


# ----------------------------------------------------------------------------------------------------------- checking


def _check_words(inner: argparse.Namespace, words: list[str]) -> None:
    """Refuse passwords, which the dashboard would show, an address of the inner command, and binary output."""
    if any(has_password(word) for word in words):
        raise UserError(
            f"submit {words[0]}: a URL in the command has a password, which the dashboard would show; set it on the head "
            "node instead: PGPASSWORD or ~/.pgpass for PostgreSQL, the usual AWS or Google credentials for storage."
        )
    if any(word.partition("=")[0] == "--address" for word in words) and inner.address != "auto":
        raise UserError(
            f"submit {words[0]} --address {inner.address}: the job joins the cluster it runs on; give the address before "
            f"the command, as in harness submit --address {inner.address} {words[0]} ..."
        )
    if inner.format == "parquet":
        raise UserError(
            f"submit {words[0]} --format parquet: a job's output is text; print the file from the store afterwards, with harness "
            "report --format parquet."
        )


def _check_persistent(inner: argparse.Namespace) -> None:
    """Store, artifact storage and results must lie outside the job's own folder, which is deleted with the job."""
    gone = "a job's own folder is deleted with it"
    try:
        url = parsed(inner.store) if inner.store else None
    except UserError as error:
        raise UserError(f"submit {inner.command}: {error}") from None
    sqlite = url is not None and url.get_backend_name() == "sqlite"
    if url is None or (sqlite and not Path(url.database or "").is_absolute()):
        raise UserError(
            f"submit {inner.command} --store: {gone}, with every relative path; name a database server, or a file on the head node as "
            "sqlite:////absolute/path.db."
        )
    places = [("--storage", inner.storage, "a folder that every node sees or s3://BUCKET/PATH")]
    if inner.command == "tune":
        places.append(("--out", inner.out, "a folder of the head node"))
    for flag, place, fix in places:
        beside_store = place is None and sqlite
        if not beside_store and (place is None or not ("://" in place or Path(place).is_absolute())):
            raise UserError(f"submit {inner.command} {flag}: {gone}; name {fix} by its absolute path.")


def _runtime_env(file: str | None) -> dict[str, Any]:
    """The file's mapping as Ray takes it."""
    if file is None:
        return {}
    environment = load_yaml(Path(file), RuntimeEnv)
    for name, value in environment.env_vars.items():
        if SECRET.search(name) or has_password(value):
            raise UserError(
                f"--runtime-env {file}, key env_vars.{name}: the cluster stores and shows runtime environments; set this "
                "variable on the nodes instead, before 'ray start' or from a Kubernetes secret."
            )
    folder = environment.working_dir
    if folder and "://" not in folder and not Path(folder).expanduser().is_dir():
        raise UserError(f"--runtime-env {file}, key working_dir: there is no folder {folder}.")
    return environment.model_dump(exclude_unset=True)


def _checked(inner: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Read the tables, spaces and tasks that the command names and check all values against them, without data. Returns a
    word for the job's name, and the metadata that the dashboard shows."""
    if inner.command == "tune":
        request = read_tune(inner)
        space = requested_space(request)
        bench = space.bench(request.base, space.defaults)
        name, shown = space.space.name, {"study": space.space.name, "method": space.method, "preset": space.preset}
    else:
        bench, shown, name = read(inner), {}, ""
    resolved = read_named(bench).resolve()
    shown = {"table": resolved.table.name, "preset": resolved.preset, "encoder": resolved.encoder} | shown
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name or resolved.table.name), shown


def _uploads(inner: argparse.Namespace, working_dir: str | None) -> Iterator[str]:
    """The small files that the command names and that are uploaded with the job; a working_dir must hold them already."""
    not_uploaded = "name a path that every node sees, or put it into a working_dir with --runtime-env."
    for flag, text in _named(inner):
        path = Path(text)
        small = text.endswith((*YAML, PYTHON))
        if text.endswith(YAML) and "tasks" in flag and not working_dir:
            task = load_user_task(path)
            files = {"data": task.data, "unlabelled": task.unlabelled, **dict(task.files)}
            for key, file in files.items():
                if file and Path(file).is_relative_to(path.absolute().parent):
                    raise UserError(f"{flag} {text}, key {key}: data are not uploaded with a job; {not_uploaded}")
        if path.is_absolute() or text.startswith("~") or not (small or path.exists()):
            if small:
                raise UserError(
                    f"{flag} {text}: name the file from this folder, without a leading '/' or '~', so that it is uploaded with the job."
                )
            continue  # a name, or a place on the cluster
        if working_dir:
            if "://" not in working_dir and not (Path(working_dir).expanduser() / path).exists():
                raise UserError(f"{flag} {text}: the runtime environment's working_dir {working_dir} has no such file.")
        elif not small:
            raise UserError(f"{flag} {text}: data and encoders are not uploaded with a job; {not_uploaded}")
        elif ".." in path.parts:
            raise UserError(
                f"{flag} {text}: go to the folder above and name the file from there, so that it is uploaded with the job."
            )
        else:
            yield text


def _named(inner: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(flag, value) of every flag that may name a file or folder, also inside a --with file."""
    places = ("table", "data", "encoder", "corpus", *BESIDE)
    values = {name: getattr(inner, name, None) for name in ("space", *places)}
    values["translator"] = (inner.translator or "").removeprefix("file:")
    yield from ((f"--{name}", value) for name, value in values.items() if value)
    yield from (("--tasks", text) for text in inner.tasks or ())
    methods = (getattr(inner, "method", None), *(getattr(inner, "methods", None) or ()))
    parts = (part for method in methods if method for part in method.split("+"))
    yield from (("--methods", part) for part in parts if part.endswith(PYTHON))
    for file in getattr(inner, "with_files", None) or ():
        yield "--with", file
        if target := load_point(Path(file)).target:
            named = {name: value for name in places if (value := getattr(target, name))}
            yield from ((f"{file}, key target.{name}:", value) for name, value in named.items())
            yield from ((f"{file}, key target.tasks:", text) for text in target.tasks)
