"""DeiT III with token labels: recipes of ours, beside those that they are made from."""

from each import each_of

from bigvit.recipe import CrossEntropy, MixToken, TokenLabeling, batch_layout
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import recipe_from_json, to_json

WIDTHS = {"s16": 384, "b16": 768, "l16": 1024}


@each_of("size", WIDTHS)
def test_token_labelling_changes_heads_losses_and_mixing_alone(size: str):
    """They are ours, and say so; parameters: 1,000 times the width and one more."""
    base = find_recipe(f"deit3_{size}_in1k_224")[1]
    recipe = find_recipe(f"deit3_{size}_in1k_224_tokens")[1]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    assert recipe.source.startswith("bigvit: DeiT III") and "no paper" in recipe.source
    found, before = dict(leaves(recipe)), dict(leaves(base))
    different = {path for path in found.keys() & before.keys() if found[path] != before[path]}
    assert different == {"source", "model.dense_head", "objectives.0.smoothing"}
    assert found["model.dense_head"] is True
    assert recipe.data.mix == MixToken(alpha=1.0, cell=16, group=8)  # pyright: ignore
    assert recipe.objectives == (
        CrossEntropy(1.0, 0.1, class_weights=None),
        TokenLabeling(1.0, 0.1, "map"),
    )
    more = recipe.model.parameters(224) - base.model.parameters(224)
    assert more == 1000 * (WIDTHS[size] + 1)
    assert batch_layout(recipe, 8, None) == batch_layout(base, 8, None)
