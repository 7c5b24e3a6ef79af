"""One chat by the `openai` package: chat.py BASE_URL API_KEY PROMPT. Prints the answer."""

import sys

import openai

url, key, prompt = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
stream = client.chat.completions.create(
    model="tiny", messages=[{"role": "user", "content": prompt}], max_tokens=24, temperature=0, stream=True
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        sys.stdout.write(chunk.choices[0].delta.content)
