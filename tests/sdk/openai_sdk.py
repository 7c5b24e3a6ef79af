"""The `openai` package, unmodified, against `bifrost proxy`. Started by tests/tests/openai_sdk.rs.

Usage: openai_sdk.py BASE_URL LIMITED_URL. Both serve the model "tiny" to the key "hello"; LIMITED_URL lets in one
request a second or so, in front of a model that takes long.
"""
import sys
import time

import openai

url, limited = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="hello", max_retries=0)
messages = [{"role": "user", "content": "Why?"}]
common = dict(model="tiny", seed=7, extra_body={"ignore_eos": True})


def refused(kind, status, call):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def chats():
    whole = client.chat.completions.create(messages=messages, max_completion_tokens=24, n=2, **common)
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-") and whole.model == "tiny"
    assert [c.finish_reason for c in whole.choices] == ["length", "length"]
    assert whole.usage.completion_tokens == 48
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 48
    assert whole._request_id.startswith("req-")
    texts, usage, roles = ["", ""], None, 0
    stream = client.chat.completions.create(
        messages=messages, max_completion_tokens=24, n=2, stream=True, stream_options={"include_usage": True}, **common
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles += choice.delta.role == "assistant"
            texts[choice.index] += choice.delta.content or ""
    assert roles == 2 and texts == [c.message.content for c in whole.choices]
    assert usage.completion_tokens == 48
    stop = texts[0][5:7]
    cut = client.chat.completions.create(messages=messages, max_completion_tokens=24, stop=stop, **common)
    assert cut.choices[0].finish_reason == "stop" and cut.choices[0].message.content == texts[0].split(stop)[0]
    with client.chat.completions.stream(messages=messages, max_completion_tokens=24, stop=stop, **common) as helper:
        final = helper.get_final_completion()
    assert final.choices[0].message.content == cut.choices[0].message.content


def completions():
    whole = client.completions.create(prompt=["a", "b"], max_tokens=8, logprobs=2, **common)
    assert whole.object == "text_completion" and [c.index for c in whole.choices] == [0, 1]
    for choice in whole.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == 8
        assert all(lp <= 0 for lp in choice.logprobs.token_logprobs)
    texts = ["", ""]
    for chunk in client.completions.create(prompt=["a", "b"], max_tokens=8, stream=True, **common):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [c.text for c in whole.choices]
    assert client.completions.create(model="tiny", prompt="a").usage.completion_tokens <= 16


def logprobs():
    whole = client.chat.completions.create(
        messages=messages, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3, **common
    )
    content = whole.choices[0].logprobs.content
    assert len(content) == 6
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob
        assert bytes(token.bytes) is not None


def errors():
    error = refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(
        messages=messages, temperature=3, **common))
    assert error.param == "temperature" and error.type == "invalid_request_error" and "0 to 2" in error.message
    error = refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(
        messages=messages, response_format={"type": "json_object"}, **common))
    assert error.param == "response_format"
    error = refused(openai.BadRequestError, 400, lambda: client.completions.create(prompt="x" * 999, **common))
    assert error.param == "prompt" and error.code == "context_length_exceeded"
    error = refused(openai.NotFoundError, 404, lambda: client.completions.create(model="gpt-4", prompt="a"))
    assert error.code == "model_not_found"
    stranger = client.with_options(api_key="wrong")
    error = refused(openai.AuthenticationError, 401, lambda: stranger.completions.create(prompt="a", **common))
    assert error.code == "invalid_api_key"
    assert [m.id for m in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"


def limits_and_leaving():
    slow = openai.OpenAI(base_url=f"{limited}/v1", api_key="hello", max_retries=0)
    stream = slow.completions.create(prompt="a", max_tokens=1000, stream=True, **common)
    next(iter(stream))
    error = refused(openai.RateLimitError, 429, lambda: slow.completions.create(prompt="a", max_tokens=1, **common))
    assert error.code == "rate_limit_exceeded" and error.response.headers["retry-after"] == "1"
    # Leaving makes room at once: 1000 tokens would take a minute, a retry after the second it was told is enough.
    stream.close()
    begin = time.monotonic()
    again = slow.with_options(max_retries=4).completions.create(prompt="a", max_tokens=1, **common)
    assert again.usage.completion_tokens == 1 and time.monotonic() - begin < 15


for part in (chats, completions, logprobs, errors, limits_and_leaving):
    part()
    print(f"openai {openai.__version__}: {part.__name__}: ok")
