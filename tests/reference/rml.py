"""Robust ranking, pair by pair: Cevikalp 2019, eq. 1 to 8; gradients as eq. 7 and 8 write them."""


def ramp(t, s, leak):
    """R(t) = H_1(t) − (1 − leak) H_s(t), H_a(t) = max(0, a − t); and its derivative, 0 at both kinks' far sides."""
    value = max(0.0, 1 - t) - (1 - leak) * max(0.0, s - t)
    if 1 - t > 0 and s - t < 0:
        slope = -1.0
    elif 1 - t > 0:
        slope = -leak
    else:
        slope = 0.0
    return value, slope


def harmonic(r):
    return sum(1 / i for i in range(1, r + 1))


def first_violator(x, j, order):
    """q: the place in `order` of the first negative with 1 − x_j + x_k ≥ 0; one past the end if there is none."""
    for place, k in enumerate(order, 1):
        if 1 - x[j] + x[k] >= 0:
            return place
    return len(order) + 1


def exact_rank(x, j, negatives):
    return sum(1 - x[j] + x[k] >= 0 for k in negatives)


def loss(x, pos, neg, rank, s=-0.8, leak=0.0, kappa=5.0):
    """One image: x, pos, neg lists of C; rank {positive: r}. Gives contributions per class and the gradient, C each."""
    classes = range(len(x))
    value, gradient = [0.0 for _ in classes], [0.0 for _ in classes]
    for j in classes:
        if pos[j] > 0:
            for k in classes:
                if neg[k] > 0:
                    weight = (pos[j] * neg[k]) ** 0.5 * harmonic(rank[j])
                    cost, slope = ramp(x[j] - x[k], s, leak)
                    value[j] += weight * cost
                    gradient[j] += weight * slope
                    gradient[k] -= weight * slope
        for weight, sign in ((pos[j], 1.0), (neg[j], -1.0)):
            cost, slope = ramp(sign * x[j], s, leak)
            value[j] += kappa * weight * cost
            gradient[j] += kappa * weight * sign * slope
    return value, gradient
