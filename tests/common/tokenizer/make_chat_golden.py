#!/usr/bin/env python3
"""Writes chat_golden.json: what transformers' apply_chat_template makes of conversations, for the templates that we know.

    pip install transformers jinja2
    make_chat_golden.py chat_golden.json

Each form stands twice: as models publish it (to be recognised; kept to what the form writes), and as we write it for other
programs, which must give the same text. The tests read the file alone.
"""
import json, sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
           "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
           "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN25 = (  # without its part on tools
    "{%- if messages[0]['role'] == 'system' %}\n{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n{%- else %}\n"
    "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for message in messages %}\n{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
    "(message.role == 'assistant') %}\n{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
          "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = ("{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content'] %}\n"
           "    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}\n\n"
           "{{- bos_token }}\n{%- for message in loop_messages %}\n    {%- if message['role'] == 'user' %}\n"
           "        {%- if loop.first and system_message is defined %}\n"
           "            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}\n        {%- else %}\n"
           "            {{- ' [INST] ' + message['content'] + ' [/INST]' }}\n        {%- endif %}\n"
           "    {%- elif message['role'] == 'assistant' %}\n        {{- ' ' + message['content'] + eos_token}}\n    {%- endif %}\n"
           "{%- endfor %}\n")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n"
          "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")

# Ours, as ChatTemplate::jinja() gives them.
OURS = {
    "tandem": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ 'System: ' + "
              "message['content'] | trim + '\\n' }}{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] | trim + "
              "'\\nAssistant:' }}{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}",
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
              "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "smollm2": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\\n"
               "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + "
               "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
               "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama3": "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
              "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt "
              "%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\\n\\n' %}{% set "
               "turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{% for message in turns "
               "%}{% if message['role'] == 'user' %}{{ ' [INST] ' + (system if loop.first else '') + message['content'] + ' "
               "[/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}",
    "zephyr": "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + eos_token + "
              "'\\n' }}{% elif message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + eos_token + '\\n' }}{% else "
              "%}{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% endif %}{% endfor %}{% if "
              "add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
}

FORMS = [  # name of the form, the published text, ours, begin and end of the tokenizer
    ("tandem", OURS["tandem"], OURS["tandem"], "<|endoftext|>", "<|endoftext|>"),
    ("chatml", CHATML, OURS["chatml"], "<|im_start|>", "<|im_end|>"),
    ("chatml", SMOLLM2, OURS["smollm2"], "<|im_start|>", "<|im_end|>"),
    ("chatml", QWEN25, None, "<|endoftext|>", "<|endoftext|>"),
    ("llama3", LLAMA3, OURS["llama3"], "<|begin_of_text|>", "<|end_of_text|>"),
    ("mistral", MISTRAL, OURS["mistral"], "<s>", "</s>"),
    ("zephyr", ZEPHYR, OURS["zephyr"], "<s>", "</s>"),
]


def turns(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


CONVERSATIONS = [
    turns("Hello"),
    turns("Hello", "Good day."),
    turns("What is 2 + 2?", "4", "And 3 + 3?", "6"),
    turns("What is 2 + 2?", "4", "And 3 + 3?"),
    turns("Who are you?", "A pirate.", system="You are a pirate."),
    turns("  spaces \n", "\n\nlines\n", " and\ttabs ", "  ", system=" s "),
    turns("", ""),
    turns("\u00e4\u00f6\u00fc \U0001f600 {{ braces }} {% no %} 'quotes' \"double\" \\n", "<|im_end|> </s> [/INST] are text"),
]


def main():
    cases = []
    for form, published, ours, begin, end in FORMS:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=begin, eos_token=end)
        texts = []
        for messages in CONVERSATIONS:
            for invites in (False, True):
                text, again = (tokenizer.apply_chat_template(messages, chat_template=template or published, tokenize=False,
                                                             add_generation_prompt=invites) for template in (published, ours))
                assert text == again, (form, messages, text, again)
                texts.append({"messages": messages, "answer_follows": invites, "text": text})
        cases.append({"form": form, "published": published, "ours": ours, "begin": begin, "end": end, "texts": texts})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=True)
        file.write("\n")


main()
