"""Network families: each is a schema of ``models/*.yaml`` that builds a forward graph.

A new family is one file here and its class in `FAMILIES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.workload.families.amoebanet import AmoebaNet
from ridgeline.workload.families.base import Network
from ridgeline.workload.families.bert import Bert
from ridgeline.workload.families.decoder import Decoder
from ridgeline.workload.families.deep_speech import DeepSpeech
from ridgeline.workload.families.dlrm import Dlrm
from ridgeline.workload.families.encoder_decoder import EncoderDecoder
from ridgeline.workload.families.fcn import Fcn
from ridgeline.workload.families.gnmt import Gnmt
from ridgeline.workload.families.mask_rcnn import MaskRcnn
from ridgeline.workload.families.mlp import Mlp
from ridgeline.workload.families.ncf import Ncf
from ridgeline.workload.families.policy_value import PolicyValue
from ridgeline.workload.families.recurrent import RecurrentLm
from ridgeline.workload.families.resnet import ResNet
from ridgeline.workload.families.sequential import Sequential
from ridgeline.workload.families.ssd import Ssd
from ridgeline.workload.families.vit import VisionTransformer

FAMILIES: Mapping[str, type[Network]] = MappingProxyType(
    {
        "amoebanet": AmoebaNet,
        "bert": Bert,
        "decoder": Decoder,
        "deep-speech": DeepSpeech,
        "dlrm": Dlrm,
        "encoder-decoder": EncoderDecoder,
        "fcn": Fcn,
        "gnmt": Gnmt,
        "mask-rcnn": MaskRcnn,
        "mlp": Mlp,
        "ncf": Ncf,
        "policy-value": PolicyValue,
        "recurrent-lm": RecurrentLm,
        "resnet": ResNet,
        "sequential": Sequential,
        "ssd": Ssd,
        "vision-transformer": VisionTransformer,
    }
)

__all__ = ["FAMILIES", "Network"]
