"""Attention per label, and message passing over a label graph (Chen 2019, SSGRL)."""

from __future__ import annotations

from halflabel.methods.base import BelowOne, Method, Size, SizeOrZero, method
from halflabel.methods.parts.semantic import SemanticMethod, semantic_parts


@method(
    serves=("full", "partial"),
    paper="Chen, Xu, Hui, Wu, Lin 2019: Learning Semantic-Specific Graph Representation for Multi-Label Image "
    "Recognition (SSGRL)",
    lr=1e-3,
    tune={"steps": (1, 3)},
)
def ssgrl(
    steps: SizeOrZero = 3,
    dropout: BelowOne = 0.5,
    width: SizeOrZero = 256,
    rank: Size = 256,
    graph: str = "cooccurrence",
    vectors: str = "graph",
    vector_size: Size = 300,
) -> Method:
    """Every label attends to the places that look like it, and passes its features over a graph of the labels.

    Use it if objects are small or many in a picture and labels depend on each other. It was designed for full labels;
    of partly known labels it uses the known ones. It needs features with places (maps). Its class maps show the
    attention of each label.

        f_c = Σ_p α_cp x_p,   α_c = softmax over places of w · tanh((U x_p) ⊙ (V v_c)),   v_c the label's vector
        T times: a_c = [Σ_c' A_cc' h_c', Σ_c' A_c'c h_c'],  h_c ← gated update of h_c by a_c,   h_c⁰ = f_c
        x_c = w_c · tanh(F [h_c, f_c]) + b_c,   A_cc' = P(c' | c)                                        (eq. 1 to 8)
        L = BCE on known labels, divided by the known labels of the batch

    steps (T); width: of x and h, to which the features are projected (0: no projection); rank: of U and V. The paper
    has 2,048 and 1,024; 256 is for speed. dropout: of the features; our addition, without it a head of this size
    memorises few labels within three epochs. graph: cooccurrence, counted in images where both labels are known; a CSV
    file of rows class,class,weight, where the first class is inferred from the second; or identity. vectors (v): graph
    = computed from co-occurrence; a text file of word vectors (GloVe, as in the paper, or word2vec); or text:MODEL, a
    sentence-transformers model. vector_size: length of the vectors, 300 in the paper.

    The two linear layers after tanh are one vector here, which is the same function. The paper trains with Adam, 1e-5.
    P counts one more image, so that pairs seen once have little weight, and A_cc is 0: the gates use the label's state.
    """
    return SemanticMethod(**semantic_parts(**locals()))
