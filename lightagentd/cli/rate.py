"""`lactl rate`: says what an answer is worth."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import told
from lightagentd.cli.trace_name import trace_ids, whole_trace


@click.command("rate", cls=Command)
@click.argument("trace", shell_complete=trace_ids)
@click.argument("rating", type=click.Choice(["good", "bad"]))
@click.option("--note", metavar="TEXT", default="", help="Why, in your words.")
@click.pass_obj
def command(settings: Settings, trace: str, rating: str, note: str) -> None:
    """Say what the answer of the turn TRACE is worth: good or bad.

    It is kept in the history, with the turn, and takes the place of what you said of it before. 'lactl eval
    rated' lists the ratings, and 'lactl eval add TRACE' makes a case of the turn, with your note.
    """
    whole = whole_trace(settings, trace)
    found = settings.call("Evals.Rate", trace_id=whole, rating=rating, note=note or None)
    sentence = f"{whole} is rated {rating}. To make a case of it: lactl eval add {whole} --to FILE"
    told(settings, found, sentence, whole, rating)
