"""Network families: each is a schema of ``models/*.yaml`` that builds a forward graph.

A new family is one file here and its class in `FAMILIES`; the file is imported when a model of the
family is loaded.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ridgeline.workload.families.base import Network

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "amoebanet": "amoebanet.AmoebaNet",
        "arcface": "arcface.ArcFace",
        "autoencoder": "autoencoder.Autoencoder",
        "bert": "bert.Bert",
        "decoder": "decoder.Decoder",
        "deep-speech": "deep_speech.DeepSpeech",
        "diffusion-transformer": "dit.DiT",
        "cross-diffusion": "cross_diffusion.CrossDiffusion",
        "diffusion-u-net": "diffusion_u_net.DiffusionUNet",
        "dlrm": "dlrm.Dlrm",
        "efficientdet": "efficientdet.EfficientDet",
        "efficientnet": "efficientnet.EfficientNet",
        "electra": "electra.Electra",
        "encoder": "encoder.Encoder",
        "encoder-decoder": "encoder_decoder.EncoderDecoder",
        "encoder-pair": "encoder_pair.EncoderPair",
        "fcn": "fcn.Fcn",
        "flux": "flux.Flux",
        "gnmt": "gnmt.Gnmt",
        "jasper": "jasper.Jasper",
        "mask-rcnn": "mask_rcnn.MaskRcnn",
        "mlp": "mlp.Mlp",
        "ncf": "ncf.Ncf",
        "policy-value": "policy_value.PolicyValue",
        "recurrent-lm": "recurrent.RecurrentLm",
        "resnet": "resnet.ResNet",
        "retinanet": "retinanet.RetinaNet",
        "sequential": "sequential.Sequential",
        "ssd": "ssd.Ssd",
        "swin": "swin.Swin",
        "transducer": "transducer.Transducer",
        "transformer-xl": "transformer_xl.TransformerXl",
        "u-net": "u_net.UNet",
        "v-net": "v_net.VNet",
        "vision-transformer": "vit.VisionTransformer",
        "wide-and-deep": "wide_deep.WideAndDeep",
    }
)
"""Name of a family -> module and class."""


NETWORK_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "arcface": "cnn",
        "amoebanet": "cnn",
        "bert": "transformer",
        "decoder": "decoder",
        "deep-speech": "speech",
        "diffusion-transformer": "diffusion",
        "cross-diffusion": "diffusion",
        "diffusion-u-net": "diffusion",
        "dlrm": "recommender",
        "efficientdet": "cnn",
        "efficientnet": "cnn",
        "electra": "transformer",
        "encoder": "transformer",
        "encoder-decoder": "transformer",
        "encoder-pair": "transformer",
        "fcn": "cnn",
        "flux": "diffusion",
        "gnmt": "rnn",
        "jasper": "speech",
        "mask-rcnn": "cnn",
        "ncf": "recommender",
        "recurrent-lm": "rnn",
        "resnet": "cnn",
        "retinanet": "cnn",
        "sequential": "cnn",
        "ssd": "cnn",
        "swin": "transformer",
        "transducer": "speech",
        "transformer-xl": "transformer",
        "u-net": "cnn",
        "v-net": "cnn",
        "vision-transformer": "transformer",
        "wide-and-deep": "recommender",
    }
)
"""Kind of the networks of a family, by which software stacks say what they run; others: "other"."""


def network_kind(network: Network) -> str:
    """Return the kind of a network: decoder, transformer, cnn, rnn, recommender, ..."""
    return NETWORK_KINDS.get(network.family, "other")


def family_schema(name: str) -> type[Network]:
    """Import the schema of a family in `FAMILIES`."""
    module, _, schema = FAMILIES[name].partition(".")
    found: type[Network] = getattr(import_module(f"{__name__}.{module}"), schema)
    return found


__all__ = ["FAMILIES", "NETWORK_KINDS", "Network", "family_schema", "network_kind"]
