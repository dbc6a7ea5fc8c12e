"""The shipped checkpoint: official format, read like any other, and the model that was trained."""

import jax
import ml_dtypes
import numpy as np
import pytest

from dsv4.checkpoint import names, reader
from dsv4.training import documents, evaluation, export, recipe
from dsv4.training.forward import forward
from dsv4.training.initial import initial_model
from dsv4.training.parameters import parameters_of
from serve.default_model import shipped_model
from tests.dsv4 import golden

TOLERANCE = 1e-4
LARGEST_BYTES = 16 << 20


@pytest.fixture(scope="module")
def shipped():
    model = export.load_float32(shipped_model())
    return golden.GoldenModel(model.config, model, {})


def test_the_shipped_model_has_the_recipes_shape_and_is_small(shipped):
    assert shipped.config == recipe.model_config()
    assert sum(path.stat().st_size for path in shipped_model().iterdir()) < LARGEST_BYTES
    stored = names.official_tensors(reader.read_tensors(shipped_model()))
    assert stored["layers.0.attn.wkv.weight"].dtype == "BF16"


@pytest.mark.soak
def test_served_logits_are_those_of_the_training_forward(shipped):
    ids = documents.encode(evaluation.recall_set(1024, 1)[0])[0]
    tokens = np.zeros((1, -(-len(ids) // 128) * 128), np.int32)
    tokens[0, : len(ids)] = ids
    wanted = jax.jit(lambda t: forward(shipped.model, t, sparse=True)[0])(tokens)[0, : len(ids)]
    spec, cache = golden.create(shipped.config, num_pages=8)
    table = np.arange(1, 1 + -(-len(ids) // spec.page_tokens))
    _, logits = shipped.run_prefill(spec, cache, ids, table, 1, chunk=512)
    assert np.abs(logits - wanted).max() < TOLERANCE


def test_an_export_reads_back_as_what_was_exported_rounded_to_bf16(tmp_path):
    parameters = parameters_of(initial_model(recipe.model_config(), seed=1))
    export.export(recipe.model_config(), parameters, tmp_path / "model")
    read = parameters_of(export.load_float32(tmp_path / "model"))
    assert read.keys() == parameters.keys()
    for path, value in parameters.items():
        array = np.asarray(value)
        if array.dtype == np.float32 and not np.array_equal(array, read[path]):
            array = array.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(array, read[path], err_msg=path)


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="directory"):
        export.export(
            recipe.model_config(), parameters_of(initial_model(recipe.model_config(), 1)), tmp_path
        )
