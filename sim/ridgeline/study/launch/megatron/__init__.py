"""What arguments of Megatron-LM and Megatron-Core mean for network, plan and software stack."""

from ridgeline.study.launch.megatron.arguments import Arguments, finish
from ridgeline.study.launch.megatron.encoders import encoder_network
from ridgeline.study.launch.megatron.network import network
from ridgeline.study.launch.megatron.plan import fp8_precision, plan
from ridgeline.study.launch.megatron.software import software

__all__ = ["Arguments", "encoder_network", "finish", "fp8_precision", "network", "plan", "software"]
