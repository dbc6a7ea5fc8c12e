"""Choice of an implementation."""

import logging

import pytest

from pallas_kernels import dispatch, target


def choose(implementation, refusal=None):
    return dispatch.choose(
        "store",
        implementation,
        reference=lambda: "reference",
        pallas=lambda: lambda: "pallas",
        refusal=refusal,
    )()


@pytest.fixture
def on_gpu(monkeypatch):
    gpu = target.Target("gpu", "NVIDIA B200", "sm_100a")
    monkeypatch.setattr(target, "current", lambda: gpu)


def test_no_name_means_the_reference_on_a_cpu():
    assert choose(None) == "reference"


def test_no_name_means_pallas_on_a_gpu_that_it_compiles_for(on_gpu):
    assert choose(None) == "pallas"


def test_no_name_means_the_reference_where_the_kernel_refuses(on_gpu):
    assert choose(None, "float32 pages are not written") == "reference"


@pytest.mark.parametrize("name", dispatch.IMPLEMENTATIONS)
def test_a_name_means_exactly_that_one(name):
    assert choose(name) == name


@pytest.mark.parametrize("name", dispatch.IMPLEMENTATIONS)
def test_a_name_means_exactly_that_one_on_a_gpu(name, on_gpu):
    assert choose(name) == name


def test_a_named_kernel_that_refuses_is_an_error_and_no_fallback():
    with pytest.raises(ValueError, match="store got 'pallas', but float32 pages are not written"):
        choose("pallas", "float32 pages are not written")


def test_a_named_kernel_on_an_unknown_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(target, "current", lambda: target.Target("gpu", "NVIDIA V100"))
    assert choose(None) == "reference"
    with pytest.raises(ValueError, match="does not compile for NVIDIA V100"):
        choose("pallas")


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="implementation: got 'cuda'"):
        choose("cuda")  # pyright: ignore[reportArgumentType]


def test_each_choice_is_logged_once(caplog):
    dispatch._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            choose(None)
        choose("pallas")
    assert len(caplog.messages) == 2
    assert "interpreted on the CPU" in caplog.messages[1]
