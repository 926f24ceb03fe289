"""Provide the small biased models and images that ship with the package.

`open_world` opens synthetic images with ground truth as data sets. `load_clip`, `load_pipeline` and
`load_judge` load the models that were trained on them with the code in `eval/miniature` (in a
checkout). `load_photographs` loads real photographs together with a small model.
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.miniature.architectures import AttributeNetwork as AttributeNetwork
    from vldebias.miniature.models import Preprocess as Preprocess
    from vldebias.miniature.models import is_miniature as is_miniature
    from vldebias.miniature.models import load_clip as load_clip
    from vldebias.miniature.models import load_judge as load_judge
    from vldebias.miniature.models import load_pipeline as load_pipeline
    from vldebias.miniature.models import weights_dir as weights_dir
    from vldebias.miniature.photograph_model import Photographs as Photographs
    from vldebias.miniature.photograph_model import load_photographs as load_photographs
    from vldebias.miniature.pictures import open_world as open_world

# Loaders are imported on first use, because most users only need one of them.
__getattr__, __dir__, __all__ = lazy_names(__name__)
