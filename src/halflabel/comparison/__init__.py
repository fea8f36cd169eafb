"""Trials: several methods × seeds × sets of labels on one data set, evaluated alike."""
