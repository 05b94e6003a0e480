"""GPT-2, Llama, Qwen 2 and 3, Mixtral and DeepSeek V2 and V3 as plain functions of f64 tensors: the oracle behind tests/golden.

Written from the papers and independent of transformers, because `model.double()` is no oracle there: its
Llama keeps RMSNorm, softmax and the rotary angles in f32 whatever the weights are. make_goldens.py refuses to
write a golden where the two disagree by more than f32 rounding.

Shapes: ids i64 [B, S]; activations [B, S, hidden]; q, k, v [B, heads, S, head_dim]; logits [B, S, vocab].
Weights go by their Hugging Face names; GPT-2's Conv1D matrices are [in, out], all others [out, in].
"""

import math

import torch


def rope_frequencies(config):
    """Radians per position of each rotary pair, f64 [head_dim / 2], scaled as config says."""
    dim = config.get("qk_rope_head_dim") or config.get(
        "head_dim", config["hidden_size"] // config["num_attention_heads"])
    theta = config["rope_theta"]
    freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return freq
    if scaling["rope_type"] == "linear":
        return freq / scaling["factor"]
    if scaling["rope_type"] == "yarn":
        # Peng et al. 2023, 2309.00071, as DeepSeek's code has it: a ramp over the pair's number, between those
        # that turn beta_fast and beta_slow times within the old context.
        def pair_that_turns(times):
            old = scaling["original_max_position_embeddings"]
            return dim * math.log(old / (times * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(pair_that_turns(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(pair_that_turns(scaling.get("beta_slow", 1))), dim - 1)
        slowed = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        return slowed * freq / scaling["factor"] + (1 - slowed) * freq
    # Llama 3.1: how often a pair turns within the old context decides; between the two limits, a blend.
    turns = scaling["original_max_position_embeddings"] * freq / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * freq + (1 - keep) * freq / scaling["factor"]


def rope_bands(config):
    """Pairs that llama3 or yarn scaling keeps, blends and slows: a golden must have all three."""
    plain, scaled = rope_frequencies({**config, "rope_scaling": None}), rope_frequencies(config)
    slower = plain / scaled
    kept = int((slower < 1 + 1e-9).sum())
    slowed = int((slower > config["rope_scaling"]["factor"] - 1e-9).sum())
    return {"kept": kept, "blended": len(plain) - kept - slowed, "slowed": slowed}


def yarn_factors(config):
    """What YaRN multiplies rotated queries and keys with, and DeepSeek's scores."""
    s = config.get("rope_scaling") or {}
    if s.get("rope_type") != "yarn":
        return 1.0, 1.0

    def m(weight):
        return 0.1 * weight * math.log(s["factor"]) + 1.0

    both, every = s.get("mscale") and s.get("mscale_all_dim"), s.get("mscale_all_dim")
    amplitude = s.get("attention_factor") or (m(s["mscale"]) / m(every) if both else m(1))
    return amplitude, m(every) ** 2 if every else 1.0


def rotate(x, freq):
    """Rotary embedding (Su et al. 2021), pairs (i, i + head_dim / 2)."""
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * freq  # [S, D/2]
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotate_pairs(x, freq):
    """The same of pairs (2i, 2i + 1)."""
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * freq
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def attend(q, k, v):
    """Causal softmax attention; key/value head h * KV / H serves query head h."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    size = q.shape[-2]
    future = torch.ones(size, size, dtype=torch.bool).triu(1)
    out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return out.transpose(1, 2).flatten(2)  # [B, S, heads * head_dim]


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def gpt2_logits(config, w, ids):
    eps, heads = config["layer_norm_epsilon"], config["n_head"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        rstd = (centred.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return centred * rstd * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(config["n_layer"]):
        p = f"transformer.h.{i}."
        q, k, v = linear(norm(x, p + "ln_1"), p + "attn.c_attn").chunk(3, dim=-1)
        x = x + linear(attend(*(split_heads(t, heads) for t in (q, k, v))), p + "attn.c_proj")
        u = linear(norm(x, p + "ln_2"), p + "mlp.c_fc")
        # gelu_new: the tanh approximation of Hendrycks & Gimpel 2016
        u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + linear(u, p + "mlp.c_proj")
    tied = config.get("tie_word_embeddings", True)
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight" if tied else "lm_head.weight"].T


def experts_of(config, w, p, y):
    """A feed-forward of experts (Mixtral, 2401.04088), as a loop over all experts and all tokens.

    weight [B, S, E] is 0 where a token does not visit an expert.
    """
    mixtral = config["model_type"] == "mixtral"
    p += "block_sparse_moe." if mixtral else "mlp."
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")

    def expert(name):
        gate, up, down = (w[f"{name}.{n}.weight"] for n in names)
        g = y @ gate.T
        return (g * torch.sigmoid(g) * (y @ up.T)) @ down.T

    share = (y @ w[p + "gate.weight"].T).softmax(-1)
    count = config["num_local_experts" if mixtral else "num_experts"]
    chosen = share.topk(config["num_experts_per_tok"], dim=-1).indices
    weight = share * torch.zeros_like(share).scatter(-1, chosen, 1.0)
    if mixtral or config["norm_topk_prob"]:
        weight = weight / weight.sum(-1, keepdim=True)
    out = sum(weight[..., e : e + 1] * expert(f"{p}experts.{e}") for e in range(count))
    if p + "shared_expert_gate.weight" in w:
        out = out + torch.sigmoid(y @ w[p + "shared_expert_gate.weight"].T) * expert(p + "shared_expert")
    return out


def choose_by_groups(scores, config):
    """DeepSeek's node-limited choice (2405.04434 section 2.2.2; 2412.19437 section 2.1.2): i64 [B, S, k]."""
    if config.get("topk_method", "noaux_tc") != "greedy":
        groups, v3 = config["n_group"], config["model_type"] == "deepseek_v3"
        each = scores.unflatten(-1, (groups, -1))
        worth = each.topk(2, dim=-1).values.sum(-1) if v3 else each.max(-1).values
        best = torch.zeros_like(worth).scatter(-1, worth.topk(config["topk_group"], dim=-1).indices, 1.0)
        scores = each.masked_fill(best[..., None] == 0, -math.inf).flatten(-2)
    return scores.topk(config["num_experts_per_tok"], dim=-1).indices


def deepseek_experts(config, w, p, y):
    """Experts of DeepSeek V2 (softmax scores) and V3 (sigmoid, with a bias that only chooses)."""
    def expert(name):
        gate, up, down = (w[f"{name}.{n}.weight"] for n in ("gate_proj", "up_proj", "down_proj"))
        g = y @ gate.T
        return (g * torch.sigmoid(g) * (y @ up.T)) @ down.T

    p += "mlp."
    logits = y @ w[p + "gate.weight"].T
    v3 = config["model_type"] == "deepseek_v3"
    scores = torch.sigmoid(logits) if v3 else logits.softmax(-1)
    bias = w[p + "gate.e_score_correction_bias"] if v3 else 0.0
    chosen = choose_by_groups(scores + bias, config)
    weight = scores * torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    if v3 and config["norm_topk_prob"]:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    weight = weight * config["routed_scaling_factor"]
    out = sum(weight[..., e : e + 1] * expert(f"{p}experts.{e}") for e in range(config["n_routed_experts"]))
    return out + expert(p + "shared_experts")


def latent_attention(config, w, p, y, linear, freq):
    """Multi-head latent attention (DeepSeek-V2, 2405.04434, equations 9 to 19)."""
    heads, nope, rank = config["num_attention_heads"], config["qk_nope_head_dim"], config["kv_lora_rank"]
    turn = rotate_pairs if config.get("rope_interleave", True) else rotate

    def norm(x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w[name + ".weight"]

    if p + "q_proj.weight" in w:
        q = linear(y, p + "q_proj")
    else:
        q = linear(norm(linear(y, p + "q_a_proj"), p + "q_a_layernorm"), p + "q_b_proj")
    q = split_heads(q, heads)
    amplitude, scores = yarn_factors(config)
    kv = linear(y, p + "kv_a_proj_with_mqa")
    shared = turn(kv[..., rank:].unsqueeze(1), freq) * amplitude
    kv = split_heads(linear(norm(kv[..., :rank], p + "kv_a_layernorm"), p + "kv_b_proj"), heads)
    k = torch.cat((kv[..., :nope], shared.expand(-1, heads, -1, -1)), dim=-1)
    q = torch.cat((q[..., :nope], turn(q[..., nope:], freq) * amplitude), dim=-1)
    return linear(attend(q * scores, k, kv[..., nope:]), p + "o_proj")


def llama_logits(config, w, ids):
    """Llama; Mixtral; DeepSeek; Qwen 2 and 3, with experts too, where their biases and norms of the heads of q and
    k are among the weights."""
    eps, freq = config["rms_norm_eps"], rope_frequencies(config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def norm(x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        bias = w.get(name + ".bias")
        return y if bias is None else y + bias

    def dense(y, p):
        gate, up = linear(y, p + "mlp.gate_proj"), linear(y, p + "mlp.up_proj")
        return linear(gate * torch.sigmoid(gate) * up, p + "mlp.down_proj")

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        y = norm(x, p + "input_layernorm")
        if "kv_lora_rank" in config:
            x = x + latent_attention(config, w, p + "self_attn.", y, linear, freq)
            y = norm(x, p + "post_attention_layernorm")
            x = x + (deepseek_experts(config, w, p, y) if p + "mlp.gate.weight" in w else dense(y, p))
            continue
        q = split_heads(linear(y, p + "self_attn.q_proj"), heads)
        k = split_heads(linear(y, p + "self_attn.k_proj"), kv_heads)
        if p + "self_attn.q_norm.weight" in w:
            q, k = norm(q, p + "self_attn.q_norm"), norm(k, p + "self_attn.k_norm")
        amplitude, _ = yarn_factors(config)
        q, k = rotate(q, freq) * amplitude, rotate(k, freq) * amplitude
        v = split_heads(linear(y, p + "self_attn.v_proj"), kv_heads)
        x = x + linear(attend(q, k, v), p + "self_attn.o_proj")
        y = norm(x, p + "post_attention_layernorm")
        if p + "mlp.gate_proj.weight" in w:
            x = x + dense(y, p)
        else:
            x = x + experts_of(config, w, p, y)
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, "model.norm") @ head.T


def token_losses(logits, targets):
    """-log softmax at the target, [B, S]; 0 where the target is -1 (ignored)."""
    picked = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (logits.logsumexp(-1) - picked) * (targets >= 0)


def is_buffer(name):
    """State of the model that has no gradient: the bias by which a router balances its experts."""
    return name.endswith("e_score_correction_bias")


class Oracle:
    """A model in f64 with its own AdamW (Loshchilov & Hutter 2019)."""

    def __init__(self, config, weights):
        self.logits_of = gpt2_logits if config["model_type"] == "gpt2" else llama_logits
        self.config = config
        self.w = {n: t.detach().double().requires_grad_(not is_buffer(n)) for n, t in weights.items()}
        self.params = {n: t for n, t in self.w.items() if not is_buffer(n)}
        self.m = {n: torch.zeros_like(t) for n, t in self.params.items()}
        self.v = {n: torch.zeros_like(t) for n, t in self.params.items()}
        self.steps = 0

    def backward(self, ids, targets):
        """logits, token losses, loss, {name: gradient} of one batch."""
        logits = self.logits_of(self.config, self.w, ids)
        losses = token_losses(logits, targets)
        loss = losses.sum() / (targets >= 0).sum()
        grads = torch.autograd.grad(loss, list(self.params.values()))
        return logits.detach(), losses.detach(), loss.detach(), dict(zip(self.params, grads))

    def step(self, ids, targets, opt):
        """One update; returns the loss and the gradient norm before clipping."""
        _, _, loss, grads = self.backward(ids, targets)
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads.values()))
        scale = torch.clamp(opt["clip_norm"] / (norm + 1e-6), max=1.0)
        b1, b2 = opt["betas"]
        self.steps += 1
        with torch.no_grad():
            for name, w in self.params.items():
                g = grads[name] * scale
                self.m[name].mul_(b1).add_((1 - b1) * g)
                self.v[name].mul_(b2).add_((1 - b2) * g * g)
                if w.dim() >= 2:
                    w.mul_(1 - opt["lr"] * opt["weight_decay"])
                m_hat = self.m[name] / (1 - b1**self.steps)
                v_hat = self.v[name] / (1 - b2**self.steps)
                w.sub_(opt["lr"] * m_hat / (v_hat.sqrt() + opt["eps"]))
        return loss, norm
