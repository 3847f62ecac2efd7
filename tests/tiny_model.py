"""Makes a complete, tiny language model on disk: a random Llama with a byte-level BPE tokenizer and
a ChatML template.

For tests that need the real engine without a download. The text it writes has no meaning, but it
varies, is the same for the same seed, and does not end by itself for hundreds of tokens. It does
not imitate the quality or speed of a real model.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

VOCAB_SIZE = 512
WEIGHT_STD = (
    0.25  # large on purpose: attention then depends on the content, and greedy text seldom loops
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TRAINING_TEXT = (
    "The river runs past the mill and the wheel turns all day long.",
    "system user assistant You are a helpful assistant. What is the capital of France?",
    "Hello world! How are you today? I am fine, thank you; and you?",
    "A headrace is the channel that brings water to the wheel of a mill.",
    "for i in range(10):\n    print(i, i * i)\n\nreturn {'key': [1, 2, 3], 'other': None}",
    "Der Fluss fließt an der Mühle vorbei, und das Rad dreht sich den ganzen Tag.",
    "Où est la bibliothèque ? Elle est à côté du café, près de l'église.",
    "你好，世界。河水流过磨坊，水车整天转动。",  # noqa: RUF001
    "今日はいい天気ですね。川は水車小屋のそばを流れています。",
    "Река течёт мимо мельницы, и колесо вращается весь день. 😀👋🎉",
)


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer (the same at each call) and give it the ChatML
    template.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXT * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=IM_END,
        unk_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
    )


def make_tiny_model(
    folder: Path, seed: int = 0, max_position_embeddings: int = 512, num_layers: int = 2
) -> Path:
    """Write config, safetensors, tokenizer and generation config to `folder` and return it.

    Equal arguments give equal files. Hidden size 64, 4 heads of 32 over 2 KV heads, float32.
    """
    tokenizer = make_tiny_tokenizer()
    eos_id = tokenizer.convert_tokens_to_ids(IM_END)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_position_embeddings,
        initializer_range=WEIGHT_STD,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.convert_tokens_to_ids(IM_START),
        eos_token_id=eos_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(
            2.0
        )  # sharper: sampling at temperature 1 stays varied but not flat
        special_ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
        model.lm_head.weight[special_ids] = (
            0.0  # logit 0, about e^-8 of the mass: it seldom ends by itself
        )
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=eos_id, pad_token_id=eos_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
