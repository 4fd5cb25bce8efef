"""Options of ``ridgeline memory`` that mean nothing without, or beside, another are refused."""

import pytest

from ridgeline.cli import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--library", "cudnn4"], "belongs to convolutions"),
        (["--fit", "v100-sxm2-16gb", "--recompute", "full"], "--recompute: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--offload", "all"], "--offload: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--library", "cudnn4"], "--library: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--out", "x.png"], "--out: --fit looks"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["memory", "vgg16", "--batch", "2", *options])
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
