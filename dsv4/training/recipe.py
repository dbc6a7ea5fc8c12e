"""The tiny trained model: its shape, and the stages of its training."""

from __future__ import annotations

import dataclasses

from dsv4.config import ModelConfig
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.training.tasks import Kind


def model_config() -> ModelConfig:
    """Five layers: two window-only, two with an indexer, one c128; 1.3 million parameters.

    A query sees 16 of the entries of a layer with an indexer: of 512 in a prompt of 2,048 bytes.
    """
    return ModelConfig(
        vocab_size=ByteTokenizer().vocab_size,
        hidden_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=64,
        o_groups=2,
        o_lora_rank=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=2,
        routed_scaling_factor=1.5,
        compress_ratios=(0, 0, 4, 128, 4),
        index_n_heads=8,
        index_head_dim=32,
        index_topk=16,
        num_hash_layers=1,
        sliding_window=64,
        num_nextn_predict_layers=0,
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps of one kind.

    Attributes:
      steps: how many.
      length: tokens of a document.
      documents: of a step.
      mixture: share of each kind of exercise.
      sparse: attention sees what the indexer selects, and not every entry.
      word_share: of the codes of facts that are words, as the arguments of calls are.
    """

    steps: int
    length: int
    documents: int
    mixture: dict[Kind, float]
    sparse: bool
    word_share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides what training gives.

    Attributes:
      stages: one after the other.
      learning_rate: the highest; it rises over `warmup` steps and falls over the last `decay` ones.
      warmup, decay: steps.
      weight_decay: of matrices.
      indexer_loss, balance_loss: weights of the auxiliary losses.
      bias_step: by how much a step moves the bias of an expert that had more or less than its
        share; the gradient does not know the bias.
      seed: of the first parameters and of all documents.
    """

    stages: tuple[Stage, ...]
    learning_rate: float = 4e-3
    warmup: int = 100
    decay: int = 340
    weight_decay: float = 0.01
    indexer_loss: float = 0.1
    balance_loss: float = 0.01
    bias_step: float = 1e-3
    seed: int = 0

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(stage.steps for stage in self.stages)

    def stage_of(self, step: int) -> Stage:
        """The stage of a step, counted from 0."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        raise ValueError(f"step: beyond the last one by {step}, expected below {self.steps}")


_RECALL: dict[Kind, float] = {"recall": 0.9, "plain": 0.1}
_CALLS: dict[Kind, float] = {"recall": 0.35, "calls": 0.55, "plain": 0.1}
_BOTH: dict[Kind, float] = {"recall": 0.45, "calls": 0.45, "plain": 0.1}


def recipe() -> Recipe:
    """What the shipped checkpoint was trained with."""
    return Recipe(
        (
            Stage(420, 256, 16, _RECALL, sparse=False),
            Stage(400, 256, 16, _CALLS, sparse=False, word_share=0.3),
            Stage(240, 512, 8, _BOTH, sparse=False, word_share=0.3),
            Stage(250, 1024, 4, _BOTH, sparse=True, word_share=0.3),
            Stage(200, 2560, 3, _BOTH, sparse=True, word_share=0.3),
            Stage(200, 1024, 4, _CALLS, sparse=True, word_share=0.3),
            Stage(140, 2560, 3, _BOTH, sparse=True, word_share=0.3),
        )
    )
