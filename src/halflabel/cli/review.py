"""The command `review`: serve the review page, or export its answers as labels."""

from __future__ import annotations

import getpass
import shlex
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import after_review
from halflabel.cli.terminal import console, show_command, show_next
from halflabel.errors import UserError
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.runs.folder import RunFolder


@app.command()
def review(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `train`; with --classes a new folder.")],
    images: Annotated[Path | None, typer.Argument(metavar="IMAGES", help="The folder with the image files.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Ask only these questions, from `halflabel next`, without learning meanwhile.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Start without labels: class names separated by commas, or a file with one per line."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="With --classes: the backbone, as for `train` (default: that of `train`).")
    ] = None,
    label: Annotated[str | None, typer.Option("--class", help="Open the page at the photos of this class.")] = None,
    precision: Annotated[
        float, typer.Option(help="How sure the model must be to decide a label by itself.", min=0.5, max=0.999)
    ] = 0.95,
    answers: Annotated[
        Path | None, typer.Option(help="The file for the answers (default: RUN/answers.sqlite).")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Name of the person who answers (default: your login name).")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 can be reached from other machines.")
    ] = ("127.0.0.1"),
    port: Annotated[int | None, typer.Option(help="Port (default: 8765, or a free one).", min=0, max=65535)] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the answers to this label file (.csv or .parquet) instead of serving the page."),
    ] = None,
    with_labels: Annotated[
        bool, typer.Option("--with-labels", help="With --export: also write the labels of the run, ready for `train`.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --export: overwrite the file even if it is not an export.")
    ] = False,
) -> None:
    """Answer questions about images in the browser; the model learns while you click. All data stay on this machine.

    After every 20 answers the model is fitted again and asks what helps it most. One question in ten is a random check,
    from which the page estimates how good the model is. Answers are saved at once. Finish, on the page, trains a new
    run, fills the unknown labels and writes a report; so do: halflabel train --continue RUN, then halflabel fill

    Example: halflabel review runs/first photos/

    Example: halflabel review runs/birds photos/ --classes robin,wren,blackbird
    """
    from halflabel.runs.folder import RunFolder

    if classes is not None and export is None:
        _start_without_labels(run, images, classes, backbone)
    elif backbone is not None:
        raise UserError("--backbone needs --classes", "leave it out: the run has a backbone")
    opened = RunFolder.open(run)
    place = answers or opened.answers
    if export is not None:
        _export(opened, place, export, with_labels, force)
        return
    for flag, is_set in (("--with-labels", with_labels), ("--force", force)):
        if is_set:
            raise UserError(f"{flag} needs --export", "add --export FILE")
    if images is None:
        raise UserError("IMAGES is missing", f"halflabel review {shlex.quote(str(run))} photos/")
    _serve(opened, images, questions, place, who or _login(), host, port, precision, label)


def _start_without_labels(run: Path, images: Path | None, classes: str, backbone: str | None) -> None:
    """Start a run folder without labels, unless it was started before with the same classes."""
    from halflabel.review.live_setup import read_class_names, start_without_labels
    from halflabel.runs.folder import RunFolder

    names = read_class_names(classes)
    if RunFolder(run).is_started:
        if list(RunFolder(run).read_labels().classes) != names:
            raise UserError(f"{run} was started with other classes", "leave --classes out, or name another folder")
        return
    if images is None:
        raise UserError("IMAGES is missing", f"halflabel review {shlex.quote(str(run))} photos/ --classes {classes}")
    start_without_labels(run, images, names, backbone)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "someone"


def _export(run: RunFolder, place: Path, out: Path, with_labels: bool, force: bool) -> None:
    from halflabel.labels import formats
    from halflabel.review.answers import AnswerStore

    if not place.exists():
        raise UserError(
            f"there are no answers yet ({place})", f"halflabel review {shlex.quote(str(run.folder))} photos/"
        )
    labels = run.read_rows()
    store = AnswerStore(place)
    try:
        if out.exists() and not force and not store.is_export(out, labels):
            raise UserError(
                f"{out} exists and is not an export of these answers",
                "choose another name, or add --force to overwrite it",
            )
        rows = store.label_rows(labels.images, labels.classes)
        unsure = sum(item.value == 0 for item in store.current())
    finally:
        store.close()
    present = int((rows.value > 0).sum())
    formats.write(labels.append(rows) if with_labels else rows.drop_unused_names(), out)
    console.print(
        f"Wrote [bold]{escape(str(out))}[/]: {counted(len(rows), 'answer')}, {present} present and "
        f"{len(rows) - present} absent; {unsure} unsure left out",
        soft_wrap=True,
    )
    if with_labels:
        config = run.read_config()
        method = str(config.get("method", "an"))
        show_next("halflabel", "train", out, str(config.get("images") or "photos/"), "--method", method)
    else:
        show_next("halflabel", "train", "--continue", run.folder, "--answers", out)


def _serve(
    run: RunFolder,
    images: Path,
    questions: Path | None,
    place: Path,
    who: str,
    host: str,
    port: int | None,
    precision: float,
    label: str | None,
) -> None:
    from urllib.parse import quote

    from halflabel.report.run_page import write_report
    from halflabel.review import server
    from halflabel.review.answers import AnswerStore, answered_entries
    from halflabel.review.live_process import LiveLoop, LiveSetup, live_hindrance
    from halflabel.review.questions import CONTROL_FILL, choose_questions, read_questions
    from halflabel.review.scores import cached_scores
    from halflabel.review.session import ReviewSession
    from halflabel.review.thumbnails import ClassMaps, Thumbnails
    from halflabel.system.sockets import is_loopback, open_socket

    # Scoring images may take long: mistakes are reported before.
    if not images.is_dir():
        raise UserError(f"{images} is not a folder", "name the folder with the images")
    has_labels = run.read_labels().known > 0
    if label is not None and label not in run.read_labels().classes:
        raise UserError(f"the run has no class {label!r}", "name a class of its labels")
    if has_labels:
        run.check_finished()
    found = read_questions(questions, run.read_labels()) if questions is not None else None
    hindrance = live_hindrance(run)
    is_live = found is None and hindrance is None
    ports = (server.PORT, 0) if port is None else (port,)
    with open_socket(host, *ports) as listening, ExitStack() as stack:
        with Bar("scores") as bar:
            scored = cached_scores(run, images, Reporter(bar))
        store = stack.enter_context(closing(AnswerStore(place)))
        if found is None:
            skip = answered_entries(place, scored.table)
            found = choose_questions(
                scored.scores,
                scored.table,
                scored.thresholds,
                200,
                features=scored.features,
                skip=skip,
                control=0.0 if is_live else 0.1,  # the live queue has its own random checks
            )
        if not found and has_labels:
            raise UserError("there is nothing to ask", "all entries of the run's labels are known or answered")
        is_control = bool(found) and all(question.why == CONTROL_FILL for question in found)
        after = after_review(run.folder, images, is_control=is_control) if has_labels else ""
        name = run.folder.resolve().name
        session = ReviewSession(scored, found, store, who=who, run=name, live=is_live, next_command=after)
        thumbnails = Thumbnails(images, scored.paths)
        token = server.new_token()
        number = listening.getsockname()[1]
        if not is_loopback(host):
            console.print(
                f"[bold yellow]warning:[/] {escape(host)} can be reached from other machines, and the page is not "
                "encrypted: whoever sees the address or the network can see your photos and answer for you",
                soft_wrap=True,
            )
        live = None
        if is_live:
            setup = LiveSetup(run.folder, images, precision, write_report)
            live = stack.enter_context(closing(LiveLoop(session, setup)))
        maps = ClassMaps(run, thumbnails) if run.weights.exists() else None
        app = server.make_app(session, thumbnails, maps, token=token, host=host, port=number, live=live)
        shown = f"[{host}]" if ":" in host else host
        # Plain print: no line break and no markup in an address that people click on or copy.
        page = "" if label is None else f"&class={quote(label, safe='')}"
        about = "The model learns while you answer." if is_live else f"{counted(len(found), 'question')}."
        print(f"{about} Open  http://{shown}:{number}/#{token}{page}", flush=True)
        if hindrance is not None and questions is None:
            console.print(f"The model does not learn meanwhile: {hindrance}.", soft_wrap=True)
        console.print(f"Answers are saved to {escape(str(place))}. Ctrl-C stops the server.", soft_wrap=True)
        try:
            server.serve(app, listening)
        finally:  # Ctrl-C is the usual end
            if after and store.count()[0]:
                show_command(after)
