"""Fill: complete a label table with what a trained model is sure of, with probability and provenance; and undo it."""

from halflabel.fill.crossfit import Scores, cross_fit, score_run
from halflabel.fill.filling import RULE, Filling, Tally, plan
from halflabel.fill.undo import undo
from halflabel.fill.write import fill_run, write_filled

__all__ = ["RULE", "Filling", "Scores", "Tally", "cross_fit", "fill_run", "plan", "score_run", "undo", "write_filled"]
