#!/usr/bin/env python3
"""Writes tests/golden: tiny seeded models with PyTorch's logits, losses, gradients and ten AdamW steps.

Needs PyTorch and transformers, which nothing else here does, so they live in an environment outside the tree:

    python3 -m venv ~/goldens-venv
    ~/goldens-venv/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy
    ~/goldens-venv/bin/python tools/make_goldens.py            # writes tests/golden/<case>/
    ~/goldens-venv/bin/python tools/make_goldens.py --check    # regenerates aside and compares every byte

PyPI's torch brings several GB of CUDA libraries that the goldens never use; a CPU build of the same version
does as well. The same versions on the same kind of processor write the same bytes; one thread and the
plainest instruction set are asked for below to widen that. What each file holds and the bounds that the tests
use: tests/golden/README.md.
"""

import os

# Read when torch's libraries load: one path of instructions and one order of sums whatever the machine.
os.environ.update(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", OMP_NUM_THREADS="1",
                  ONEDNN_MAX_CPU_ISA="SSE41")

import argparse
import copy
import filecmp
import json
import math
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import safetensors
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

from golden_oracle import Oracle, is_buffer, rope_bands

SEQUENCES, LENGTH, STEPS = 2, 37, 10
F16_LOSS_SCALE = 1024.0
OPTIMIZER = {"name": "adamw", "lr": 0.004, "schedule": "constant", "betas": [0.9, 0.95], "eps": 1e-8,
             "weight_decay": 0.1, "decayed": "tensors of two or more dims, embeddings included",
             "clip_norm": 1.0}

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_act": "silu",
         "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_scaling": None,
         "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2}

# What published Qwen folders say: a window that is not in use. ARCHITECTURE is what a config.json names.
QWEN = {"num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 1,
        "eos_token_id": 2, "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2}
DEEPSEEK = {"num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 0,
            "eos_token_id": 1, "first_k_dense_replace": 1}
ARCHITECTURES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
                 "qwen3": "Qwen3ForCausalLM", "mixtral": "MixtralForCausalLM",
                 "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
                 "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}

# `config` is what config.json says, in the form that published checkpoints have; `saved_by` "library" lets
# transformers write its newer form instead (rope_parameters, dtype), so that both are read by the tests.
CASES = {
    "gpt2": {
        "what": "GPT-2: LayerNorm, gelu_new, learned positions, biases, tied head; head_dim 8",
        "seed": 11, "saved_by": "library", "shard": None, "clip_norm": 2.0,
        "config": {"model_type": "gpt2", "vocab_size": 101, "n_layer": 2, "n_head": 4, "n_embd": 32,
                   "n_positions": 48, "n_inner": None, "activation_function": "gelu_new",
                   "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
                   "bos_token_id": 100, "eos_token_id": 100}},
    "llama2": {
        "what": "Llama 2: a key/value head per query head, own output head; sharded into several files",
        "seed": 22, "saved_by": "hand", "shard": "96KB",
        "omit": ["head_dim", "attention_bias", "mlp_bias", "rope_theta"],  # as the first Llama 2 folders did
        "config": {**LLAMA, "vocab_size": 101, "hidden_size": 48, "intermediate_size": 88,
                   "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 12, "rope_theta": 10000.0,
                   "tie_word_embeddings": False}},
    "llama3": {
        "what": "Llama 3.2: 6 query heads on 2 key/value heads, llama3 rope scaling, tied head",
        "seed": 33, "saved_by": "hand", "shard": None,
        "config": {**LLAMA, "vocab_size": 83, "hidden_size": 48, "intermediate_size": 36,
                   "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 500000.0,
                   "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
                   "max_position_embeddings": 2048, "tie_word_embeddings": True}},
    "llama_linear": {
        "what": "linear rope scaling by 3, one key/value head, head_dim 6, eps 1e-6",
        "seed": 44, "saved_by": "library", "shard": None,
        "config": {**LLAMA, "vocab_size": 67, "hidden_size": 24, "intermediate_size": 32,
                   "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 6,
                   "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
                   "rope_scaling": {"rope_type": "linear", "factor": 3.0}, "tie_word_embeddings": False}},
    "llama_yarn": {
        "what": "yarn rope scaling by 4 with its default numbers, 4 query heads on 2, head_dim 12",
        "seed": 58, "saved_by": "hand", "shard": None,
        "config": {**LLAMA, "vocab_size": 67, "hidden_size": 24, "intermediate_size": 32,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 100.0,
                   "max_position_embeddings": 1024,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                    "original_max_position_embeddings": 256},
                   "tie_word_embeddings": False}},
    "llama_bias": {
        "what": "head_dim 10 where hidden / heads is 8, biases in attention and feed-forward",
        "seed": 55, "saved_by": "hand", "shard": None,
        "config": {**LLAMA, "vocab_size": 67, "hidden_size": 24, "intermediate_size": 28,
                   "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10,
                   "rope_theta": 10000.0, "attention_bias": True, "mlp_bias": True,
                   "tie_word_embeddings": False}},
    "gpt2_untied": {
        "what": "GPT-2 with an output head of its own and a feed-forward of 2 hidden; head_dim 8",
        "seed": 66, "saved_by": "hand", "shard": None,
        "config": {"model_type": "gpt2", "vocab_size": 67, "n_layer": 2, "n_head": 4, "n_embd": 32,
                   "n_positions": 40, "n_inner": 64, "activation_function": "gelu_new",
                   "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
                   "initializer_range": 0.02, "bos_token_id": 50, "eos_token_id": 50,
                   "tie_word_embeddings": False}},
    "qwen2": {
        # A base of 1e6 would leave biases of keys with next to no gradient (slow pairs hardly turn, and what
        # shifts all scores alike changes nothing), and Adam would make steps of noise.
        "what": "Qwen 2: biases on q, k and v alone, 4 query heads on 2, own output head; two shards",
        "seed": 77, "saved_by": "hand", "shard": "30KB",
        "config": {"model_type": "qwen2", **QWEN, "vocab_size": 71, "hidden_size": 24, "rope_theta": 10.0,
                   "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "tie_word_embeddings": False}},
    "qwen2_tied": {
        "what": "Qwen 2 small: tied head, one key/value head, linear rope scaling; rope_parameters, dtype",
        "seed": 88, "saved_by": "library", "shard": None,
        "config": {"model_type": "qwen2", **QWEN, "vocab_size": 67, "hidden_size": 24, "rope_theta": 1000.0,
                   "intermediate_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1,
                   "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "tie_word_embeddings": True}},
    "qwen3": {
        "what": "Qwen 3: normalised heads of q and k, head_dim 10 where hidden / heads is 6; own output head",
        "seed": 99, "saved_by": "library", "shard": None,
        "config": {"model_type": "qwen3", **QWEN, "vocab_size": 67, "hidden_size": 24, "head_dim": 10,
                   "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "attention_bias": False, "tie_word_embeddings": False}},
    "qwen3_tied": {
        "what": "Qwen 3 small: tied head, biases on q, k, v and o, hidden no multiple of heads; two shards",
        "seed": 110, "saved_by": "hand", "shard": "30KB",
        "config": {"model_type": "qwen3", **QWEN, "vocab_size": 71, "hidden_size": 20, "head_dim": 8,
                   "intermediate_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3,
                   "attention_bias": True, "tie_word_embeddings": True}},
    # Seeds of models with experts are such that no choice is so close that bf16 or f16 makes it otherwise.
    "mixtral": {
        "what": "Mixtral: 5 experts, 2 a token, weights that sum to 1; 4 query heads on 2",
        "seed": 127, "saved_by": "hand", "shard": None,
        "config": {"model_type": "mixtral", "num_hidden_layers": 2, "max_position_embeddings": 64,
                   "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
                   "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2,
                   "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.02,
                   "vocab_size": 67, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2,
                   "tie_word_embeddings": False}},
    "qwen2_moe": {
        "what": "Qwen 2 MoE: 6 experts, 3 a token, weights as they are, a gated shared expert; two shards",
        "seed": 393, "saved_by": "hand", "shard": "60KB",
        "config": {"model_type": "qwen2_moe", **QWEN, "vocab_size": 61, "hidden_size": 24, "rope_theta": 10.0,
                   "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 4,
                   "decoder_sparse_step": 1, "moe_intermediate_size": 12,
                   "shared_expert_intermediate_size": 28, "num_experts_per_tok": 3, "num_experts": 6,
                   "norm_topk_prob": False, "output_router_logits": False, "router_aux_loss_coef": 0.001,
                   "tie_word_embeddings": False}},
    "qwen3_moe": {
        "what": "Qwen 3 MoE: 7 experts, 2 a token, weights that sum to 1, normalised heads; tied head",
        "seed": 161, "saved_by": "library", "shard": None,
        "config": {"model_type": "qwen3_moe", **QWEN, "vocab_size": 61, "hidden_size": 24, "head_dim": 10,
                   "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "decoder_sparse_step": 1, "moe_intermediate_size": 12, "num_experts_per_tok": 2,
                   "num_experts": 7, "norm_topk_prob": True, "mlp_only_layers": [],
                   "output_router_logits": False, "router_aux_loss_coef": 0.001, "attention_bias": False,
                   "tie_word_embeddings": True}},
    "qwen2_moe_dense": {
        "what": "Qwen 2 MoE of three layers, of which the second alone has experts; tied head",
        "seed": 183, "saved_by": "hand", "shard": None,
        "config": {"model_type": "qwen2_moe", **QWEN, "num_hidden_layers": 3, "vocab_size": 53,
                   "hidden_size": 20, "rope_theta": 10.0, "intermediate_size": 28, "num_attention_heads": 2,
                   "num_key_value_heads": 1, "decoder_sparse_step": 2, "mlp_only_layers": [0],
                   "moe_intermediate_size": 12, "shared_expert_intermediate_size": 16,
                   "num_experts_per_tok": 2, "num_experts": 5, "norm_topk_prob": True,
                   "output_router_logits": False, "router_aux_loss_coef": 0.001,
                   "tie_word_embeddings": True}},
    "deepseek_v2": {
        "what": "DeepSeek V2: latent attention, queries straight from the input; a dense layer, then 6 experts "
                "in 3 groups, 2 a token of 2 groups by softmax scores, weights as they are times 1.7, two shared "
                "experts",
        "seed": 965, "saved_by": "hand", "shard": None,
        "config": {"model_type": "deepseek_v2", **DEEPSEEK, "vocab_size": 61, "hidden_size": 24,
                   "intermediate_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3,
                   "q_lora_rank": None, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
                   "v_head_dim": 5, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2,
                   "moe_intermediate_size": 8, "topk_method": "group_limited_greedy", "n_group": 3,
                   "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.7,
                   "attention_bias": False, "tie_word_embeddings": False}},
    "deepseek_v3": {
        "what": "DeepSeek V3: latent attention of compressed queries, with biases; a dense layer, then 8 experts "
                "in 4 groups, 3 a token of 2 groups by sigmoid scores and a bias, weights that sum to 2.5, a "
                "shared expert",
        "seed": 274, "saved_by": "library", "shard": None,
        "config": {"model_type": "deepseek_v3", **DEEPSEEK, "vocab_size": 61, "hidden_size": 24,
                   "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 4,
                   "q_lora_rank": 14, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6,
                   "v_head_dim": 7, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
                   "moe_intermediate_size": 10, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                   "routed_scaling_factor": 2.5, "attention_bias": True, "tie_word_embeddings": False}},
    "deepseek_yarn": {
        "what": "DeepSeek V3 with yarn rope scaling by 4, mscale other than mscale_all_dim, all bands",
        "seed": 23, "saved_by": "hand", "shard": None,
        "config": {"model_type": "deepseek_v3", **DEEPSEEK, "vocab_size": 61, "hidden_size": 24,
                   "rope_theta": 100.0, "max_position_embeddings": 256,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 1,
                                    "mscale": 0.707, "mscale_all_dim": 1.0,
                                    "original_max_position_embeddings": 64},
                   "intermediate_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3,
                   "q_lora_rank": None, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 12,
                   "v_head_dim": 7, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
                   "moe_intermediate_size": 10, "n_group": 3, "topk_group": 2, "norm_topk_prob": True,
                   "routed_scaling_factor": 2.5, "attention_bias": False, "tie_word_embeddings": False}},
}


def optimizer_of(case):
    return {**OPTIMIZER, "clip_norm": case.get("clip_norm", OPTIMIZER["clip_norm"])}


def build(config):
    """The transformers model of a config, eager attention, f32."""
    config = copy.deepcopy(config)  # transformers writes into rope_scaling
    classes = {"gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
               "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
               "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
               "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
               "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
               "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
               "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
               "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
               "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM)}
    config_class, model_class = classes[config.pop("model_type")]
    model = model_class(config_class(**config, attn_implementation="eager", experts_implementation="eager",
                                     use_cache=False))
    return model.float().eval()


def published(config, tensors):
    """By the names of published folders: transformers holds the experts of a layer as one tensor."""
    mixtral = config["model_type"] == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, t in tensors.items():
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                for part, half in zip((gate, up), both.chunk(2, dim=0)):
                    out[name.replace("gate_up_proj", f"{e}.{part}.weight")] = half
        elif name.endswith("experts.down_proj"):
            for e, one in enumerate(t):
                out[name.replace("down_proj", f"{e}.{down}.weight")] = one
        else:
            out[name] = t
    return out


def closest(scores, k):
    """Of the k largest of each row, the least difference to the first that is not, over the deviation."""
    if k >= scores.shape[-1]:
        return math.inf
    top = scores.sort(dim=-1, descending=True).values
    return ((top[..., k - 1] - top[..., k]) / scores.std()).min().item()


def deepseek_closest(model, logits):
    """The same of DeepSeek's choices, of groups and of experts in the chosen ones."""
    c, gates = model.config, [m for m in model.modules() if type(m).__name__.endswith("TopkRouter")]
    v3 = c.model_type == "deepseek_v3"
    bias = torch.stack([g.e_score_correction_bias.float() for g in gates])[:, None] if v3 else 0.0
    scores = (torch.sigmoid(logits) if v3 else logits.softmax(-1)) + bias
    if not v3 and c.topk_method == "greedy":
        return closest(scores, c.num_experts_per_tok)
    each = scores.unflatten(-1, (c.n_group, -1))
    worth = each.topk(2, dim=-1).values.sum(-1) if v3 else each.max(-1).values
    best = worth.topk(c.topk_group, dim=-1).indices.sort(dim=-1).values
    chosen = each.gather(-2, best[..., None].expand(*best.shape, each.shape[-1])).flatten(-2)
    return min(closest(worth, c.topk_group), closest(chosen, c.num_experts_per_tok))


def choices(model, ids):
    """The experts of every token and layer, ascending, and by how little the closest choice was made: of the
    logits (of DeepSeek's models the scores), the difference between the last chosen and the first that was not,
    over their deviation."""
    seen = []
    hooks = [m.register_forward_hook(lambda _, args, out: seen.append((out[0].detach().float(), out[2])))
             for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
    with torch.no_grad():
        model(input_ids=ids.long())
    for hook in hooks:
        hook.remove()
    if not seen:
        return None, math.inf
    logits, ids = torch.stack([s[0] for s in seen]), torch.stack([s[1] for s in seen])
    if model.config.model_type.startswith("deepseek"):
        margin = deepseek_closest(model, logits)
    else:
        margin = closest(logits, model.config.num_experts_per_tok)
    return ids.sort(dim=-1).values, margin


def held(model):
    """Parameters, and buffers that folders hold."""
    return {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if is_buffer(n)}}


def fill(model, seed):
    """Seeded weights, each a bf16 number, so that f32 and bf16 runs begin at the very same model."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(held(model).items()):
            noise = torch.randn(p.shape, generator=gen)
            if is_buffer(name):
                value = noise * 0.3
            elif p.dim() == 1:
                value = noise * 0.2 + (0.0 if name.endswith("bias") else 1.0)
            elif any(key in name for key in ("wte", "wpe", "embed_tokens", "lm_head")):
                value = noise * p.shape[1] ** -0.5
            else:
                # Scores with a standard deviation of about 2: attention that is far from uniform.
                gain = 1.4 if any(key in name for key in ("c_attn", "q_proj", "k_proj", "q_b_proj", "kv_b_proj")) else 1.0
                fan_in = p.shape[0] if "transformer.h" in name else p.shape[-1]
                value = noise * gain * fan_in**-0.5
            p.copy_(value.bfloat16().float())


def make_batches(seed, vocab, count):
    """ids and targets, i32 [count, SEQUENCES, LENGTH]: a noisy walk; some targets are -1 (no loss there)."""
    gen = torch.Generator().manual_seed(seed)
    shape = (count, SEQUENCES, LENGTH + 1)
    ids = torch.randint(vocab, shape, generator=gen)
    follow = torch.rand(shape, generator=gen) < 0.7
    for t in range(1, LENGTH + 1):
        ids[..., t] = torch.where(follow[..., t], (3 * ids[..., t - 1] + 7) % vocab, ids[..., t])
    targets = ids[..., 1:].clone()
    targets[torch.rand(targets.shape, generator=gen) < 0.1] = -1
    targets[0, 1, -6:] = -1
    return ids[..., :-1].int().contiguous(), targets.int().contiguous()


def backward(model, ids, targets, scale=1.0):
    """logits, token losses and loss of one batch; gradients, times scale, are left in the parameters."""
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=ids.long()).logits
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.long().flatten(), ignore_index=-1,
                             reduction="none").view(targets.shape)
    loss = losses.sum() / (targets >= 0).sum()
    (loss * scale).backward()
    return logits.detach(), losses.detach(), loss.detach()


def adamw(params):
    """PyTorch's own AdamW over f32 parameters, decay on tensors of two or more dims."""
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": OPTIMIZER["weight_decay"]},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]),
                             eps=OPTIMIZER["eps"], foreach=False, fused=False)


def train(model, ids, targets, clip_norm, scale=1.0):
    """Ten steps. A bf16 or f16 model trains f32 masters. Returns losses, gradient norms, final f32 weights."""
    masters = {n: torch.nn.Parameter(p.detach().float().clone()) for n, p in model.named_parameters()}
    optimizer = adamw(list(masters.values()))
    losses, norms = [], []
    for i in range(STEPS):
        _, _, loss = backward(model, ids[i], targets[i], scale)
        for name, p in model.named_parameters():
            masters[name].grad = p.grad.float() / scale
        norms.append(torch.nn.utils.clip_grad_norm_(masters.values(), clip_norm, foreach=False))
        losses.append(loss)
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    return torch.stack(losses), torch.stack(norms), {n: p.detach() for n, p in masters.items()}


def relative(value, oracle):
    """|value - oracle| / |oracle|, Euclidean."""
    return ((value.double() - oracle).norm() / oracle.norm()).item()


def errors(logits, loss, grads, losses, norms, oracle):
    """How far one precision is from the oracle; the tests take their bf16 and f16 bounds from here."""
    total = math.sqrt(sum(g.pow(2).sum().item() for g in oracle["grads"].values()))
    diff = {n: (grads[n].double() - g).norm().item() for n, g in oracle["grads"].items()}
    per_tensor = {n: d / max(oracle["grads"][n].norm().item(), 1e-6 * total) for n, d in diff.items()}
    return {"logits_relative": relative(logits, oracle["logits"]),
            "logits_max_abs": (logits.double() - oracle["logits"]).abs().max().item(),
            "loss_relative": abs(loss.item() / oracle["loss"].item() - 1),
            "gradient_global_relative": math.sqrt(sum(d * d for d in diff.values())) / total,
            "gradient_relative": {n: float(f"{e:.4g}") for n, e in sorted(per_tensor.items())},
            "step_loss_relative_max": (losses.double() / oracle["losses"] - 1).abs().max().item(),
            "step_grad_norm_relative_max": (norms.double() / oracle["norms"] - 1).abs().max().item()}


def run_precision(model, data, clip_norm, scale=1.0):
    """(logits, token losses, loss, gradients), (step losses, step norms, final weights) of one model."""
    logits, token_losses, loss = backward(model, data["input_ids"], data["targets"], scale)
    grads = {n: p.grad.float() / scale for n, p in model.named_parameters()}
    losses, norms, final = train(model, data["steps.input_ids"], data["steps.targets"], clip_norm, scale)
    kind = {"model_type": model.config.model_type}
    return (logits, token_losses, loss, published(kind, grads)), (losses, norms, published(kind, final))


def half_errors(config, weights, data, clip_norm, oracle):
    """PyTorch's own f16, at a fixed loss scale."""
    model = build(config).half()
    model.load_state_dict({n: w.half() for n, w in weights.items()}, strict=False)
    (logits, _, loss, grads), (losses, norms, _) = run_precision(model, data, clip_norm, F16_LOSS_SCALE)
    return {"loss_scale": F16_LOSS_SCALE, **errors(logits, loss, grads, losses, norms, oracle)}


def compute(case):
    """Everything a golden holds: tensors by name, the facts for meta.json, the initial weights."""
    config, opt = case["config"], optimizer_of(case)
    ids, targets = make_batches(case["seed"], config["vocab_size"], STEPS + 1)
    data = {"input_ids": ids[0], "targets": targets[0], "steps.input_ids": ids[1:],
            "steps.targets": targets[1:]}
    model = build(config)
    fill(model, case["seed"])
    weights = {n: p.detach().clone() for n, p in held(model).items()}
    low = build(config).bfloat16()
    low.load_state_dict(model.state_dict())

    names = published(config, weights)
    ref = Oracle(config, names)
    o_logits, o_token, o_loss, o_grads = ref.backward(ids[0].long(), targets[0].long())
    walk = [ref.step(i.long(), t.long(), opt) for i, t in zip(ids[1:], targets[1:])]
    oracle = {"logits": o_logits, "loss": o_loss, "grads": o_grads,
              "losses": torch.stack([x[0] for x in walk]).detach(),
              "norms": torch.stack([x[1] for x in walk])}

    (logits, token, loss, grads), (losses, norms, final) = run_precision(model, data, opt["clip_norm"])
    (b_logits, _, b_loss, b_grads), (b_losses, b_norms, _) = run_precision(low, data, opt["clip_norm"])
    f32 = errors(logits, loss, grads, losses, norms, oracle)
    moved = {n: relative(final[n] - names[n], (ref.w[n] - names[n]).detach()) for n in final}
    f32["final_update_relative"] = {n: float(f"{e:.4g}") for n, e in sorted(moved.items())}
    bf16 = errors(b_logits, b_loss, b_grads, b_losses, b_norms, oracle)
    bf16["step_losses"] = [float(f"{x:.6g}") for x in b_losses.tolist()]

    tensors = {**data, "logits": logits, "token_losses": token, "loss": loss.view(1), "steps.loss": losses,
               "steps.grad_norm": norms, "oracle.loss": o_loss.view(1), "oracle.token_losses": o_token,
               "oracle.steps.loss": oracle["losses"], "oracle.steps.grad_norm": oracle["norms"]}
    for name in grads:
        tensors["grad." + name] = grads[name]
        tensors["oracle.grad." + name] = o_grads[name]
        tensors["final." + name] = final[name]
    same_choices_or_refuse(config, weights, ids[0])
    facts = {"parameters": sum(w.numel() for n, w in weights.items() if not is_buffer(n)),
             "target_tokens": int((targets[0] >= 0).sum()),
             "step_target_tokens": [int((t >= 0).sum()) for t in targets[1:]],
             "pytorch_f32_error": f32, "pytorch_bf16_error": bf16,
             "pytorch_f16_error": half_errors(config, weights, data, opt["clip_norm"], oracle)}
    return tensors, facts, model, weights


CLOSEST = 0.015  # of the logits' deviation: some three roundings to bf16


def same_choices_or_refuse(config, weights, ids):
    """A choice that bf16 makes otherwise is another model: no bound on its gradients would mean anything."""
    f32, margin = None, math.inf
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = build(config).to(dtype)
        model.load_state_dict({n: w.to(dtype) for n, w in weights.items()}, strict=False)
        chosen, closest = choices(model, ids)
        if dtype == torch.float32:
            f32, margin = chosen, closest
        elif chosen is not None and not torch.equal(chosen, f32):
            sys.exit(f"{config['model_type']}: {dtype} chooses other experts; take another seed")
    if margin < CLOSEST:
        sys.exit(f"{config['model_type']}: the closest choice is {margin:.4f}; take another seed")


def refuse_if_doubtful(name, case, tensors, facts):
    """The two witnesses must agree, and the case must test what it says."""
    worst = max(v for k, v in facts["pytorch_f32_error"]["gradient_relative"].items() if "c_attn" not in k)
    if worst > 2e-5 or facts["pytorch_f32_error"]["logits_max_abs"] > 2e-5:
        sys.exit(f"{name}: transformers in f32 and the f64 oracle disagree: {facts['pytorch_f32_error']}")
    clipped = (tensors["steps.grad_norm"] > case.get("clip_norm", 1.0)).tolist()
    if "clip_norm" in case and (all(clipped) or not any(clipped)):
        sys.exit(f"{name}: some steps must be clipped and some not: {tensors['steps.grad_norm'].tolist()}")
    if (case["config"].get("rope_scaling") or {}).get("rope_type") in ("llama3", "yarn"):
        facts["rope_bands"] = rope_bands(case["config"])
        if min(facts["rope_bands"].values()) == 0:
            sys.exit(f"{name}: not every band of rope scaling occurs: {facts['rope_bands']}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_folder(case, model, weights, folder):
    """The Hugging Face folder of the initial weights."""
    with torch.no_grad():
        for name, p in held(model).items():
            p.copy_(weights[name])
    model.save_pretrained(folder, max_shard_size=case["shard"] or "50GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case["saved_by"] == "hand":
        architecture = ARCHITECTURES[case["config"]["model_type"]]
        kept = {k: v for k, v in case["config"].items() if k not in case.get("omit", ())}
        write_json(folder / "config.json",
                   {"architectures": [architecture], **kept, "torch_dtype": "float32", "use_cache": True})


def reload_or_refuse(name, folder, data):
    """What config.json says must be the model that was computed."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **eager, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"].long()).logits
    # Not bit-equal: weights mapped from a file are aligned otherwise, and sums then run in another order.
    error = (logits - data["logits"]).abs().max().item()
    if error > 1e-5:
        sys.exit(f"{name}: the folder as reloaded has logits that differ by {error:.1e}")


def make(name, out):
    case = CASES[name]
    tensors, facts, model, weights = compute(case)
    refuse_if_doubtful(name, case, tensors, facts)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_folder(case, model, weights, folder)
    reload_or_refuse(name, folder, tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "golden.safetensors",
              metadata={"format": "pt"})
    write_json(folder / "meta.json",
               {"case": name, "what": case["what"], "seed": case["seed"],
                "batch": [SEQUENCES, LENGTH], "steps": STEPS, "optimizer": optimizer_of(case), **facts})
    for path in folder.iterdir():
        path.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {facts['parameters']} parameters, {size / 1e3:.0f} kB, loss "
          f"{tensors['loss'].item():.4f}, steps {tensors['steps.loss'][0]:.4f} .. "
          f"{tensors['steps.loss'][-1]:.4f}")


def versions():
    return "".join(f"{k} {v}\n" for k, v in {
        "python": platform.python_version(), "torch": torch.__version__,
        "transformers": transformers.__version__, "safetensors": safetensors.__version__,
        "numpy": numpy.__version__, "machine": platform.machine(),
        "command": "python tools/make_goldens.py"}.items())


def differences(made, kept, names):
    """Files under `names` and VERSIONS that are not the same bytes in both folders."""
    paths = {p.relative_to(root) for root in (made, kept) for n in names for p in (root / n).rglob("*")}
    return [p for p in sorted(paths | {Path("VERSIONS")})
            if not ((made / p).exists() and (kept / p).exists() and
                    filecmp.cmp(made / p, kept / p, shallow=False))]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "golden",
                        help="folder that gets one folder per case (default: tests/golden)")
    parser.add_argument("--case", choices=CASES, action="append", help="only this case; may be repeated")
    parser.add_argument("--check", action="store_true",
                        help="write nothing; regenerate and exit 1 if any byte differs from --out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = args.case or list(CASES)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) if args.check else args.out
        for name in names:
            make(name, out)
        (out / "VERSIONS").write_text(versions())
        if args.check:
            different = differences(out, args.out, names)
            for path in different:
                print(f"differs: {path}")
            sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
