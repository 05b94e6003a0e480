#!/usr/bin/env python3
"""Writes tests/unit/text/golden/: what the `tokenizers` library learns from a text, and how it encodes others.

    pip install tokenizers==0.23.3
    python3 tools/make_tokenizer_goldens.py

tokenizer.json is the peer's own file, trained on "training" of cases.json. Every case has the ids of its text with
special tokens recognised ("ids"), with them read as text ("as_text", where it differs), and from a copy of the
tokenizer with ignore_merges set and its last 60 merges dropped ("ignore_merges", where it differs).

pipelines.json has small tokenizers with the normalizers, pre-tokenizers, decoders and added tokens of the well-known
models ("file", what the library would save), the ids of "texts" with special tokens recognised ("ids") and read as text
("as_text"), and what the library decodes from the latter ("decoded", where it is not the text).
"""
import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "unit" / "text" / "golden"
VOCAB = 700
DROPPED = 60

TRAINING = (
    """def merge(left, right):
    '''Joins two sorted lists; the result is sorted as well.'''
    out = []
    while left and right:
        if left[0] <= right[0]:
            out.append(left.pop(0))
        else:
            out.append(right.pop(0))
    return out + left + right


class Node:
    def __init__(self, value, next=None):
        self.value = value
        self.next = next

    def __repr__(self):
        return f"Node({self.value!r})"


for i in range(1024):
    print(i, i * 3.14159, "0x%08x" % i, sep="\\t")
"""
    + "The oars rise and fall as one. It's the rowers' rhythm that drives the ship; they'll keep it, we're told, "
    "until the harbour's lights are seen. I'd say they've rowed 1200 leagues, and I'm tired of counting!\n"
    + "Die Ruder heben und senken sich im gleichen Takt, \u00fcber tausend Schl\u00e4ge je Stunde. "
    "Les rames se l\u00e8vent et s'abaissent \u00e0 l'unisson, d\u00e9j\u00e0 fatigu\u00e9es. "
    "\u0412\u0451\u0441\u043b\u0430 \u043f\u043e\u0434\u043d\u0438\u043c\u0430\u044e\u0442\u0441\u044f \u0438 \u043e\u043f\u0443\u0441\u043a\u0430\u044e\u0442\u0441\u044f \u0432\u043c\u0435\u0441\u0442\u0435. "
    "\u4e09\u767e\u306e\u6ac2\u304c\u4e00\u3064\u306b\u306a\u3063\u3066\u52d5\u304f\u3002\u8239\u306f\u9759\u304b\u306b\u9032\u3080\u3002\u4e09\u6bb5\u6ac2\u8239\u662f\u53e4\u4ee3\u7684\u6218\u8239\u3002 "
    "\u03a4\u03b1 \u03ba\u03bf\u03c5\u03c0\u03b9\u03ac \u03ba\u03b9\u03bd\u03bf\u03cd\u03bd\u03c4\u03b1\u03b9 \u03bc\u03b1\u03b6\u03af. \u0627\u0644\u0645\u062c\u0627\u062f\u064a\u0641 \u062a\u062a\u062d\u0631\u0643 \u0645\u0639\u0627. \u091a\u092a\u094d\u092a\u0942 \u090f\u0915 \u0938\u093e\u0925 \u091a\u0932\u0924\u0947 \u0939\u0948\u0902\u0964\n"
    + "\U0001f6a2\U0001f30a \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 x\u00b2 + y\u00b3 = \u2167 \u00bd\n"
)

FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "it's they'll we're I'd they've I'm 'tis 'S 'LL ''s '  's",
    "def f(x):\n    return x  # twice\n\n\n\tif x:\n\t\tpass   \n  ",
    "tabs\tand\r\nlines\r\n\r\n and  two   three    four     ",
    "no-break\u00a0space \u00a0\u00a0x ideographic\u3000\u3000space \u2003em \u180emongolian \u0085next \u200bzero \ufeffmark",
    "1234567890 12,345.67 0xDEADBEEF \u0661\u0662\u0663 \u2167\u2168 \u00b2\u00b3 \u00bd 3\u20e34",
    "caf\u00e9 cafe\u0301 na\u00efve \u017fharp \u00df \u0130stanbul \u01c5 \u02b0 \u16ee",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3001\u4e2d\u6587\u6587\u672c\u3002\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 \U00020000\U0002a6d6\U000323af",
    "\U0001f600\U0001f602\U0001f923 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3ff\u2764\ufe0f",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940 \u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22 \u1ec7\u0323",
    "new in Unicode 15 and 16: \U000323af \U00010d40 \U0001e5d0 \ua7cb \u1c89 \U00016d40 \U00013460 \U0001f6d8 \U0001fae8",
    "past the newest version: \U0001e6c0 \ua7ce \U00033400 \ue000 \U0010ffff \ufffd \ufffe \u0378",
    "controls \u0000\u0001\u001f\u007f\u0080\u009f end \u2028 line \u2029 paragraph",
    "<|endoftext|>",
    "one<|endoftext|>two <|endoftext|> <|endoftext|><|endoftext|>",
    "<|endoftext|><|endoftext|>\n<|endoftext <|endoftext|",
    "<tag>x <tag>y <tag<tag> < tag> a<tag> b <tag>",
    "\u00e9\u00e9!\u00e9\u00e9!! trailing\u00e9\u00e9",
    "a" * 200 + " " * 100 + "=" * 77 + "\n" * 70 + "ab" * 65 + "\u00e9" * 50,
    "".join(chr(c) for c in range(0x20, 0x250)),
]


def noise(rng):
    """Characters of all classes, tangled: what the split pattern must get right."""
    pools = [
        "   \t\n\r\u00a0\u3000\u2009", "'sStTmMdDrevElL", "abcXYZ\u00e9\u00fc\u03b1\u0431", "0123456789\u0661\u00b2\u2167",
        ".,;:!?()[]{}<>=+-*/|_#\"\\", "\u6f22\u5b57\u304b\u306a\ud55c\uae00", "\U0001f600\U0001f3fd\u200d\ufe0f\u0301\u0903",
    ]
    out = []
    for _ in range(rng.randint(1, 60)):
        if rng.random() < 0.1:
            code = rng.randrange(0x110000)
            out.append(chr(code) if not 0xD800 <= code < 0xE000 else "?")
        elif rng.random() < 0.03:
            out.append(rng.choice(["<|endoftext|>", "<tag>", "<tag>x"]))
        else:
            out.append(rng.choice(rng.choice(pools)))
    return "".join(out)


def train():
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>"])
    peer.train_from_iterator([TRAINING], trainer)
    peer.add_special_tokens([AddedToken("<|endoftext|><|endoftext|>\n", special=True)])
    peer.add_tokens([AddedToken("<tag>", normalized=True), AddedToken("<tag>x", normalized=True),
                     AddedToken("\u00e9\u00e9!", normalized=False)])
    return peer


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
# Of a kind that has no matcher of its own: goes through PCRE2.
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPACE = "\u2581"


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), BYTE_LEVEL])


def byte_level(pre, normalizer=None, vocab=420, special=("<|endoftext|>",), **model):
    peer = Tokenizer(models.BPE(**model))
    peer.pre_tokenizer, peer.decoder = pre, decoders.ByteLevel()
    if normalizer:
        peer.normalizer = normalizer
    peer.train_from_iterator([TRAINING], trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    peer.add_special_tokens([AddedToken(s, special=True) for s in special])
    return peer


def llama3():
    peer = byte_level(split(LLAMA3), special=("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), ignore_merges=True)
    peer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", peer.token_to_id("<|begin_of_text|>"))])])
    return peer


def flags():
    """Every flag of an added token, and contents that begin alike."""
    peer = byte_level(split(QWEN2), normalizers.NFC(), special=("<|endoftext|>", "<|endoftext|><tag>"))
    peer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("</eat>", rstrip=True, special=True),
                             AddedToken("[both]", lstrip=True, rstrip=True, special=True)])
    peer.add_tokens([AddedToken("<tag>", normalized=False), AddedToken("oar", single_word=True, normalized=False),
                     AddedToken("ship", single_word=True, lstrip=True), AddedToken("cafe\u0301", normalized=True),
                     AddedToken(" ", normalized=False, single_word=True), AddedToken("e\u0301!", normalized=False)])
    return peer


def characters(normalizer, pre, replace=True, strip=1, added_normalized=False, space=SPACE):
    """As SentencePiece models of Llama 2, Mistral and Gemma are converted: characters, and bytes for the others."""
    peer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    learner = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="always", split=True)])
    peer.pre_tokenizer = learner
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    peer.train_from_iterator([TRAINING[:1500]], trainers.BpeTrainer(
        vocab_size=520, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *bytes_]))
    file = json.loads(peer.to_str())
    file["added_tokens"] = [t | {"normalized": added_normalized} for t in file["added_tokens"][:3]]
    peer = Tokenizer.from_str(json.dumps(file))
    if normalizer:
        peer.normalizer = normalizer
    peer.pre_tokenizer = pre
    chain = [decoders.Replace(SPACE, " ")] * replace + [decoders.ByteFallback(), decoders.Fuse()]
    peer.decoder = decoders.Sequence(chain + [decoders.Strip(" ", strip, 0)] * bool(strip))
    peer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return peer


def pipelines():
    replace = normalizers.Replace(" ", SPACE)
    return {
        "llama3": llama3(),
        "qwen2": byte_level(split(QWEN2), normalizers.NFC(), special=("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "flags": flags(),
        "digits": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                      pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "o200k": byte_level(split(O200K)),
        "llama2": characters(normalizers.Sequence([normalizers.Prepend(SPACE), replace]), None, added_normalized=True),
        "mistral": characters(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        "metaspace": characters(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True)),
        "gemma": characters(replace, pre_tokenizers.Split(" ", "merged_with_previous"), strip=0),
    }


TEXTS = [
    "It'S THEY'LL we\u2019re I'D don't \u017fhe'\u017f 'Tis ''s 'rE '\u212a",
    "12345678 1 22 333 4444 x12y3 \u0661\u0662\u0663\u0664 \u2167\u2168\u2169 \u00bd\u00be",
    "a\n\n\n b \n \n  c\r\n\r\n\td  \n  e   ",
    "x = y;\n\n};\r\n  // !!\n\n\u3000\u3000\u2028z",
    "oar ship oars ship, oar. xoar oarx \u00e9oar oar\u0301 1oar _ship ship-oar  ship  ship\u200dx",
    "a   <mask>  b</eat>   c [both] [both]  d<mask></eat> e  [both]\n</eat>\n\n<mask>",
    "<|endoftext|><tag><tag> <|endoftext|><ta <|endoftext|>",
    "cafe\u0301 caf\u00e9 e\u0301! \u00e9! q\u0323\u0307 \u1e0d\u0307 \u212b \u2126 \uac00\u11a8 \u1100\u1161\u11a8 \u0344 \u0958",
    "a\u0315\u0300\u05ae\u0300\u0062 \U0001d15e \U0001d15f \u0f73\u0f71 \u0fb2\u0f80 \u1025\u102e \u0cca\u0cd5 \U0001109a \u0b92\u0bd7",
    "<s>Hello</s> <unk> <s> <s>\u2581x <0x41> <0x0A>",
    " lead  two   three\u2581visible \u2581\u2581 end ",
    "\tTab \x00\x01 \x7f \ufeff \U0010ffff \u0378",
    "the rowers' rhythm" * 40,
    "\u4e09\u767e\u306e\u6ac2" * 60,
    "<|begin_of_text|>x<|eot_id|> <|im_start|>user\n<|im_end|>",
]


def write_pipelines():
    rng = random.Random(20261120)
    texts = FIXED + TEXTS + [noise(rng) for _ in range(40)]
    texts = [t for t in texts if len(t) < 400] + [t for t in texts if 400 <= len(t) < 800]
    out = {}
    for name, peer in pipelines().items():
        ids = [peer.encode(t, add_special_tokens=False).ids for t in texts]
        peer.encode_special_tokens = True
        plain = [peer.encode(t, add_special_tokens=False).ids for t in texts]
        decoded = [peer.decode(p, skip_special_tokens=False) for p in plain]
        peer.encode_special_tokens = False
        out[name] = {"file": json.loads(peer.to_str()), "ids": ids,
                     "as_text": {i: p for i, p in enumerate(plain) if p != ids[i]},
                     "decoded": {i: d for i, d in enumerate(decoded) if d != texts[i]}}
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(v, separators=(',', ':'))}" for n, v in out.items())
    head = json.dumps({"tokenizers": tokenizers.__version__, "texts": texts})
    (FOLDER / "pipelines.json").write_text(f'{head[:-1]}, "pipelines": {{\n{lines}\n}}}}\n')
    print(f"{len(out)} pipelines, {len(texts)} texts")


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    peer = train()
    peer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    file = json.loads((FOLDER / "tokenizer.json").read_text())
    file["model"]["ignore_merges"] = True
    file["model"]["merges"] = file["model"]["merges"][:-DROPPED]
    whole = Tokenizer.from_str(json.dumps(file))
    rng = random.Random(20260301)
    cases = []
    for text in FIXED + [noise(rng) for _ in range(150)]:
        case = {"text": text, "ids": peer.encode(text).ids}
        peer.encode_special_tokens = True
        others = {"as_text": peer.encode(text).ids, "ignore_merges": whole.encode(text).ids}
        peer.encode_special_tokens = False
        cases.append(case | {name: ids for name, ids in others.items() if ids != case["ids"]})
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    head = json.dumps({"tokenizers": tokenizers.__version__, "dropped": DROPPED, "training": TRAINING})
    (FOLDER / "cases.json").write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n')
    write_pipelines()
    print(f"{len(cases)} cases, vocabulary of {peer.get_vocab_size()}, tokenizers {tokenizers.__version__}")


main()
