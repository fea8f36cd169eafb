"""Joint non-negative OMP, image by image as algorithm 2 of Huynh 2020 has it, in NumPy float64."""

from __future__ import annotations

import numpy as np

ZERO = np.finfo(np.float64).eps ** 0.5  # what is smaller, relative to the norms, counts as 0
TIE = 64 * np.finfo(np.float64).eps


def independent(columns):
    """The columns that do not depend on earlier ones, by Gram and Schmidt."""
    chosen, basis = [], []
    for number, column in enumerate(columns):
        remainder = np.array(column, np.float64)
        for _ in range(2):
            for direction in basis:
                remainder = remainder - (remainder @ direction) * direction
        if remainder @ remainder > ZERO * (column @ column):
            chosen.append(number)
            basis.append(remainder / np.linalg.norm(remainder))
    return chosen


def least_squares(target, columns):
    solution = np.zeros(len(columns))
    chosen = independent(columns)
    if chosen:
        solution[chosen] = np.linalg.lstsq(np.stack([columns[j] for j in chosen], 1), target, rcond=None)[0]
    return solution


def clipped(target, columns):
    return np.maximum(0, least_squares(target, columns))


def joint_omp(parts, k, allowed=None):
    """parts: (targets, items, weight, agree); returns index (B, k) and coefficients of each part (B, k)."""
    images, items = len(parts[0][0]), len(parts[0][1])
    index = np.full((images, k), -1)
    weights = [np.zeros((images, k)) for _ in parts]
    for i in range(images):
        residuals = [part[0][i] for part in parts]
        chosen = []
        for _ in range(k):
            scores = []
            for other in range(items):
                score = 0.0
                for residual, (_, vectors, weight, _) in zip(residuals, parts, strict=True):
                    square = vectors[other] @ vectors[other]
                    score += weight * (residual @ vectors[other]) ** 2 / square if square > 0 else 0.0
                scores.append(score if allowed is None or allowed[i, other] else -np.inf)
            if not items or max(scores) == -np.inf:
                break
            slack = TIE * sum(weight * (targets[i] @ targets[i]) for targets, _, weight, _ in parts)
            s = next(other for other in range(items) if scores[other] >= max(scores) - slack)
            if s in chosen:
                break
            if any(
                residual @ agree[s] <= ZERO * np.linalg.norm(targets[i]) * np.linalg.norm(agree[s])
                for residual, (targets, _, _, agree) in zip(residuals, parts, strict=True)
            ):
                break
            chosen.append(s)
            for number, (targets, vectors, _, _) in enumerate(parts):
                columns = [vectors[other] for other in chosen]
                actual = clipped(targets[i], columns)
                weights[number][i, : len(chosen)] = actual
                residuals[number] = targets[i] - sum(c * a for c, a in zip(actual, columns, strict=True))
        index[i, : len(chosen)] = chosen
    return index, weights
