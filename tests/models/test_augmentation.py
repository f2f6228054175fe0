import torch
from toy import toy_images

from slimsched.models.training.recipe import AugmentationRecipe, augment, distort, normalize

DATA = toy_images(30)
COLOURS = DATA.colours()


def run(recipe: AugmentationRecipe, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return augment(
        torch.from_numpy(DATA.images),
        torch.from_numpy(DATA.labels),
        classes=3,
        colours=COLOURS,
        recipe=recipe,
        generator=torch.Generator().manual_seed(seed),
    )


def test_with_every_share_at_zero_images_are_only_normalized() -> None:
    x, targets = run(AugmentationRecipe(crop_padding=0, flip_share=0, cutmix_share=0))
    assert torch.equal(x, normalize(torch.from_numpy(DATA.images).float() / 255, COLOURS))
    assert torch.equal(targets.argmax(dim=1), torch.from_numpy(DATA.labels))
    assert x.mean().abs() < 0.01
    assert (x.std() - 1).abs() < 0.01


def test_mixed_targets_still_sum_to_one() -> None:
    _, targets = run(AugmentationRecipe(distort_share=1, cutmix_share=0.5, mixup_share=0.5))
    assert torch.allclose(targets.sum(dim=1), torch.ones(30))
    assert (targets.max(dim=1).values < 1).any()


def test_the_same_seed_gives_the_same_batch() -> None:
    recipe = AugmentationRecipe(distort_share=0.5, mixup_share=0.2)
    assert torch.equal(run(recipe, 1)[0], run(recipe, 1)[0])
    assert not torch.equal(run(recipe, 1)[0], run(recipe, 2)[0])


def test_the_share_of_the_neighbour_is_the_area_of_its_box() -> None:
    recipe = AugmentationRecipe(crop_padding=0, flip_share=0, cutmix_share=1)
    x, targets = run(recipe)
    plain, labels = run(AugmentationRecipe(crop_padding=0, flip_share=0, cutmix_share=0))
    replaced = (x != plain).any(dim=1).float().mean(dim=(1, 2))
    assert torch.allclose(1 - (targets * labels).sum(dim=1), replaced, atol=0.02)


def test_distortion_keeps_pixels_in_range_and_spares_the_rest() -> None:
    pixels = torch.rand(40, 3, 16, 16)
    generator = torch.Generator().manual_seed(0)
    assert torch.allclose(distort(pixels, share=0.0, generator=generator), pixels, atol=1e-6)
    changed = distort(pixels, share=1.0, generator=generator)
    assert 0 <= changed.min() <= changed.max() <= 1
    assert (changed != pixels).any()
