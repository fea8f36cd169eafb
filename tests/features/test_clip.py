"""CLIP models of open_clip: pooled vectors, the projection, texts, names, and the head that keeps them."""

import json

import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone, fingerprint
from halflabel.features.heads import NormalisedLinear
from halflabel.features.names import leaning, likeness_for
from halflabel.fitting.fit import Inputs
from halflabel.images.sources import Features
from halflabel.labels.names import Names
from halflabel.system.reporter import Reporter

open_clip = pytest.importorskip("open_clip", reason="pip install 'halflabel[clip]'")

TEXT = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
TOWERS = {
    "tiny-vit": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "tiny-timm": {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160},
    "tiny-resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16},
}


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("architectures")
    for name, tower in TOWERS.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 24, "vision_cfg": tower, "text_cfg": TEXT}))
    open_clip.add_model_config(folder)


@pytest.fixture
def weights(tmp_path, request):
    """The weights of a whole model with random towers, and the model."""
    torch.manual_seed(1)
    model = open_clip.create_model(getattr(request, "param", "tiny-vit"), pretrained=None).eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    return tmp_path / "w.pt", model


@pytest.mark.parametrize("weights", TOWERS, indirect=True)
@torch.no_grad()
def test_projected_vectors_and_texts_are_those_of_the_model(weights, request):
    path, model = weights
    architecture = request.node.callspec.params["weights"]
    backbone = build_backbone(f"open-clip:{architecture}", weights=path)
    side = backbone.preprocess.size
    images = torch.randint(0, 256, (2, 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pooled = backbone.pooled(images)
    assert pooled.shape == (2, sum(backbone.blocks))
    projected = pooled[:, : backbone.blocks[0]] @ backbone.projection.T
    torch.testing.assert_close(projected, model.encode_image(backbone.normalise(images)), atol=1e-5, rtol=1e-4)
    maps = backbone(images)
    assert maps.shape[1] == backbone.channels
    torch.testing.assert_close(pooled[:, backbone.blocks[0] :], maps.mean((2, 3)))
    tokens = open_clip.get_tokenizer(architecture)(["a photo of a dog.", "A cat asleep."])
    torch.testing.assert_close(backbone.encode(["dog", "A cat asleep."]), model.encode_text(tokens))
    assert fingerprint(build_backbone(f"open-clip:{architecture}", weights=path)) == fingerprint(backbone)


@torch.no_grad()
def test_names_score_photos_by_cosines_and_the_head_keeps_them(weights, tmp_path):
    path, model = weights
    backbone = build_backbone("open-clip:tiny-vit", weights=path)
    images = torch.randint(0, 256, (30, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pooled, messages = backbone.pooled(images), []
    classes = ["dog", "TrafficLight", "neck_3"]
    (tmp_path / "names.yaml").write_text("neck_3: [A dress with a round neckline., collar]")
    likeness = likeness_for(
        classes, backbone, "on", str(tmp_path / "names.yaml"), tmp_path, Reporter(message=messages.append)
    )
    assert "text tower" in messages.pop()
    assert leaning(likeness) == [""] * 3
    texts = [
        "a photo of a dog.",
        "a photo of a traffic light.",
        "A dress with a round neckline.",
        "a photo of a collar.",
    ]
    unit = torch.nn.functional.normalize(model.encode_text(open_clip.get_tokenizer("tiny-vit")(texts)), dim=1)
    unit = torch.cat([unit[:2], torch.nn.functional.normalize(unit[2:].mean(0, keepdim=True), dim=1)])
    cosines = model.encode_image(backbone.normalise(images), normalize=True) @ unit.T
    expected = (cosines - cosines.mean(0)) / cosines.std(0, correction=0)
    inputs = Inputs(lambda: Features(pooled, Names.numbered(30)), backbone, likeness=likeness)
    torch.testing.assert_close(inputs.scores_of_names, expected, atol=2e-3, rtol=2e-3)

    head = NormalisedLinear(inputs.basis.transform, 3, names=inputs.names)
    head.trust.fill_(0.7)
    again = NormalisedLinear.from_shapes(head.state_dict())
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(pooled).logits, head(pooled).logits)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open-clip:tiny-vti", "no architecture 'tiny-vti'. Fix: did you mean tiny-vit"),
        ("open-clip:ViT-B-32/openia", "no weights 'openia' of ViT-B-32. Fix: use one of openai"),
        ("open-clip:tiny-vit", "names no weights. Fix: write weights=FILE"),
    ],
)
def test_names_of_no_model_are_refused(name, message):
    with pytest.raises(UserError) as error:
        build_backbone(name)
    assert message in str(error.value)


def test_weights_of_another_model_are_refused(weights):
    path, _ = weights
    with pytest.raises(UserError, match="could not be loaded"):
        build_backbone("open-clip:tiny-resnet", weights=path)
    with pytest.raises(UserError, match="no weights file"):
        build_backbone("open-clip:tiny-vit", weights=path.with_name("v.pt"))
    with pytest.raises(UserError, match="RGB"):
        build_backbone("open-clip:tiny-vit", weights=path, bands=4)


def test_untrained_weights_come_from_a_fixed_seed():
    one, other = (build_backbone("open-clip:tiny-vit", pretrained=False, size=48) for _ in range(2))
    assert one.preprocess.size == 48
    assert fingerprint(one) == fingerprint(other)
