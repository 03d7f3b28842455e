"""Real error responses of servers and proxies, each with the exception class that it must raise."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from runner.base.errors import (
    ContextExceededError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    TransientError,
)


class Row(NamedTuple):
    source: str
    status: int
    body: Any
    expected: type[NipRunError]
    expected_message: str = ""
    """Text that the error message must contain."""


def error(message: str, kind: Any = "invalid_request_error", code: Any = None, param: Any = None, **more: Any) -> Any:
    """OpenAI's envelope."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}


def bare(message: Any, code: int = 400, kind: str = "BadRequestError", param: Any = None) -> Any:
    """vLLM's and SGLang's older form, without an envelope."""
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


def litellm(message: str, code: str = "400", kind: Any = None, **more: Any) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def anthropic(message: str, kind: str = "invalid_request_error") -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}


def _choice(text: str, **more: Any) -> Any:
    """A completion whose provider failed halfway."""
    return {
        "id": "gen-1",
        "choices": [{"index": 0, "finish_reason": "error", "message": {"role": "assistant", "content": text}, **more}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 2},
    }


SUFFIX = ". Received Model Group=small\nAvailable Model Group Fallbacks=None"
NO_FALLBACK = "\n\nLiteLLM: model group 'small' failed with the error above. No fallback was attempted."
BILLING_HINT = "Add credit"
AZURE_POLICY = (
    "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify "
    "your prompt and retry. To learn more about our content filtering policies please read our documentation: "
    "https://go.microsoft.com/fwlink/?linkid=2198766"
)
QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, "
    "read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."
)
VLLM_LONG = (
    "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the "
    "messages, 10000 in the completion). Please reduce the length of the messages or completion."
)
TPM = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 30601. The "
    "input or output tokens must be reduced in order to run successfully. Visit "
    "https://platform.openai.com/account/rate-limits to learn more."
)
CONTEXT: list[Row] = [
    Row(source, status, body, ContextExceededError)
    for source, status, body in (
        ("OpenAI", 400, error(
            "This model's maximum context length is 4097 tokens. However, your messages resulted in 4111 tokens. "
            "Please reduce the length of the messages.", code="context_length_exceeded", param="messages")),
        ("OpenAI, newer models", 400, error(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. "
            "Please reduce the length of the messages.", code="context_length_exceeded", param="messages")),
        ("OpenAI, one message", 400, error(
            "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576, but got a "
            "string with length 1540820 instead.", code="string_above_max_length", param="messages[1].content")),
        ("llama.cpp", 400, {"error": {
            "code": 400, "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error", "n_prompt_tokens": 14429, "n_ctx": 8192}}),
        ("llama.cpp, September 2025", 500, {"error": {
            "code": 500,
            "message": "the request exceeds the available context size. try increasing the context size or enable "
            "context shift", "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256}}),
        ("llama.cpp, its type alone", 400, {"error": {
            "code": 400, "message": "no", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}}),
        ("llama-cpp-python", 500, {"error": {
            "message": "Requested tokens (2285) exceed context window of 2048", "type": "internal_server_error",
            "param": None, "code": None}}),
        ("vLLM", 400, bare(VLLM_LONG)),
        ("vLLM, prompt alone", 400, bare(
            "The decoder prompt (length 10127) is longer than the maximum model length of 8192. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens.")),
        ("vLLM, early 2025", 400, bare(
            "The prompt (total length 25938) is too long to fit into the model (context length 4096). Make sure that "
            "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens.")),
        ("vLLM, no room for an answer", 400, bare("max_tokens must be at least 1, got -186.")),
        ("vLLM, prompt and answer", 400, error(
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 32768 "
            "tokens and your request has 29000 input tokens (4096 > 32768 - 29000).",
            "BadRequestError", 400, "max_tokens")),
        ("vLLM, 2026", 400, error(
            "This model's maximum context length is 128000 tokens. However, you requested 5535 output tokens and your "
            "prompt contains at least 122466 input tokens, for a total of at least 128001 tokens. Please reduce the "
            "length of the input prompt or the number of requested output tokens.",
            "BadRequestError", 400, "input_tokens")),
        ("vLLM, as 422", 422, bare(VLLM_LONG, 422)),
        ("SGLang", 400, bare("The input (61709 tokens) is longer than the model's context length (40960 tokens).")),
        ("SGLang, prompt and answer", 400, bare(
            "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total "
            "of 140000 tokens: 100000 tokens from the input messages and 40000 tokens for the completion.")),
        ("TGI", 422, {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1244 `inputs` "
            "tokens and 1000 `max_new_tokens`", "error_type": "validation"}),
        ("TGI, prompt alone", 422, {
            "error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1872",
            "error_type": "validation"}),
        ("Ollama", 400, error("prompt too long; exceeded max context length by 100918 tokens", "api_error")),
        ("Together", 400, error(
            "The input (516368 tokens) is longer than the model's context length (262144 tokens).")),
        ("Mistral", 400, bare(
            "Prompt contains 200000 tokens, too large for model with 131072 maximum context length", 3051,
            "invalid_request_prompt")),
        ("Groq", 400, error("Please reduce the length of the messages or completion.", param="messages",
                            code="context_length_exceeded")),
        ("xAI", 400, {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
        ("Cerebras", 400, error("Please reduce the length of the messages or completion. Current length is 8530 while "
                                "limit is 8192", param="messages")),
        ("Moonshot", 400, error(
            "Invalid request: Your request exceeded model token limit: 256000 (requested: 300000)")),
        ("MiniMax", 400, error("invalid params, context window exceeds limit (2013)", "bad_request_error")),
        ("Cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
        ("LM Studio, no envelope", 400, {
            "error": "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded "
            "with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context "
            "length, or provide a shorter input"}),
        ("llama.cpp, in the answer", 500, error("context shift is disabled", "server_error", 500)),
        ("llama.cpp, a batch", 500, error(
            "input is too large to process. increase the physical batch size", "server_error", 500)),
        ("LM Studio", 400, error("tokens to keep from the initial prompt is greater than the context length")),
        ("Gemini", 400, [{"error": {
            "code": 400, "status": "INVALID_ARGUMENT",
            "message": "The input token count (2800010) exceeds the maximum number of tokens allowed (1048575)."}}]),
        ("Anthropic", 400, anthropic("prompt is too long: 213462 tokens > 200000 maximum")),
        ("Anthropic, with the answer", 400, anthropic(
            "input length and `max_tokens` exceed context limit: 179413 + 32768 > 200000, decrease input length or "
            "`max_tokens` and try again")),
        ("Anthropic, in bytes", 413, anthropic("Request exceeds the maximum size", "request_too_large")),
        ("Bedrock", 400, {"message": "Input is too long for requested model."}),
        ("OpenRouter", 400, {"error": {
            "message": "This endpoint's maximum context length is 40960 tokens. However, you requested about 42988 "
            "tokens (38892 of text input, 4096 in the output). Please reduce the length of either one.",
            "code": 400, "metadata": {"provider_name": None}}}),
        ("OpenRouter, of the provider behind it", 400, {"error": {
            "message": "Provider returned error", "code": 400, "metadata": {
                "raw": '{"error":{"message":"This model\'s maximum context length is 262144 tokens. However, your '
                'messages resulted in 262897 tokens.","type":"Bad Request","code":400}}', "provider_name": "Nvidia"}}}),
        ("LiteLLM", 400, litellm(
            "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: "
            f"Hosted_vllmException - too long\nmodel=small. context_window_fallbacks=None. fallbacks=None.{SUFFIX}")),
        ("LiteLLM, after a fallback", 400, litellm(
            "litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError - "
            '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200480 tokens > '
            '200000 maximum"}}\nReceived Model Group=small\nError doing the fallback: litellm.BadRequestError')),
        ("LiteLLM, as 500", 500, litellm(
            f"litellm.APIConnectionError: litellm.ContextWindowExceededError: too long{SUFFIX}", "500")),
        ("LiteLLM, as 503", 503, litellm(
            "litellm.APIConnectionError: OpenAIException - Requested token count exceeds the model's maximum context "
            "length of 131072 tokens.", "503")),
    )
]  # fmt: skip

POLICY: list[Row] = [
    Row(source, status, body, RefusedError)
    for source, status, body in (
        ("OpenAI", 400, error(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again with "
            "a different prompt", code="invalid_prompt")),
        ("Azure", 400, {"error": {
            "message": AZURE_POLICY, "type": None, "param": "prompt", "code": "content_filter", "status": 400,
            "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {
                "hate": {"filtered": True, "severity": "high"}}}}}),
        ("Azure, its inner code alone", 400, {"error": {
            "message": "no", "code": "400", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
        ("Azure, a filtered answer as 400", 400, {
            "id": "chatcmpl-1", "object": "chat.completion", "model": "", "usage": {"prompt_tokens": 55},
            "choices": [{"index": 0, "finish_reason": "content_filter",
                         "message": {"role": "assistant", "content": ""}}]}),
        ("LiteLLM", 400, litellm(
            "litellm.BadRequestError: litellm.ContentPolicyViolationError: litellm.ContentPolicyViolationError: "
            f"AzureException - {AZURE_POLICY}\nmodel=azure/gpt-4o. content_policy_fallback=None. fallbacks=None.\n\n"
            f"Set 'content_policy_fallback' - https://docs.litellm.ai/docs/routing#fallbacks{SUFFIX}",
            provider_specific_fields={"innererror": {"code": "ResponsibleAIPolicyViolation"}})),
        ("LiteLLM, its fields alone", 400, litellm(
            "litellm.BadRequestError: no",
            provider_specific_fields={"innererror": {"code": "ResponsibleAIPolicyViolation"}})),
        ("LiteLLM, as 500", 500, litellm(
            f"litellm.ContentPolicyViolationError: AzureException - {AZURE_POLICY}", "500")),
        ("Anthropic", 400, anthropic("Output blocked by content filtering policy")),
        ("DeepSeek", 400, error("Content Exists Risk")),
        ("Alibaba", 400, error(
            "Input data may contain inappropriate content.", "data_inspection_failed", "data_inspection_failed")),
        ("OpenRouter", 403, {"error": {
            "code": 403, "message": 'anthropic/claude requires moderation. Your input was flagged for "violence". No '
            "credits were charged.", "metadata": {"reasons": ["violence"], "flagged_input": "..."}}}),
        ("xAI", 403, {
            "code": "permission-denied", "error":
            "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"}),
    )
]  # fmt: skip

BILLING: list[Row] = [
    Row(source, status, body, ProviderRefusal, BILLING_HINT)
    for source, status, body in (
        ("OpenAI", 429, error(QUOTA, "insufficient_quota", "insufficient_quota")),
        ("OpenAI, hard limit", 400, error(
            "Billing hard limit has been reached", "invalid_request_error", "billing_hard_limit_reached")),
        ("OpenAI, account not active", 429, error(
            "Your account is not active, please check your billing details on our website.", "billing_not_active",
            "billing_not_active")),
        ("LiteLLM", 429, litellm(
            f"litellm.RateLimitError: RateLimitError: OpenAIException - {QUOTA}{SUFFIX}", "429", "throttling_error")),
        ("LiteLLM, hard limit", 400, litellm(
            f"litellm.BadRequestError: OpenAIException - Billing hard limit has been reached{SUFFIX}")),
        ("LiteLLM, its own budget", 400, litellm(
            "Budget has been exceeded! Current cost: 0.0010747, Max budget: 0.0", "400", "budget_exceeded")),
        ("LiteLLM, its own budget, 2026", 429, litellm("no", "429", "budget_exceeded")),
        ("LiteLLM, its own budget, 2024", 400, litellm(
            "Budget has been exceeded! Current cost: 0.0010747, Max budget: 0.0", "400", "auth_error")),
        ("LiteLLM, a user's budget", 400, litellm(
            "ExceededBudget: End User=x over budget. Spend=0.0008, Budget=0.0001", "400", "budget_exceeded")),
        ("OpenRouter", 402, {"error": {
            "message": "This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but "
            "can only afford 27342.", "code": 402, "metadata": {"provider_name": None}}}),
        ("DeepSeek", 402, error("Insufficient Balance", "unknown_error", "invalid_request_error")),
        ("Anthropic", 400, anthropic(
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
            "purchase credits.")),
        ("Anthropic, a spending limit", 400, anthropic(
            "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.")),
        ("Anthropic, a workspace's spending limit", 400, anthropic(
            "You have reached your specified workspace API usage limits. You will regain access on 2026-12-01 at 00:00 "
            "UTC.")),
        *(("xAI" if status == 429 else "xAI, as 403", status, {
            "code": "Some resource has been exhausted", "error":
            "Your team 7e5 has either used all available credits or reached its monthly spending limit. To continue "
            "making API requests, please purchase more credits or raise your spending limit."})
          for status in (429, 403)),
        ("Azure API Management", 403, {
            "statusCode": 403, "message": "Out of call volume quota. Quota will be replenished in 2.12:58:55."}),
        ("a proxy, as 403", 403, error("Insufficient credits", "forbidden")),
    )
]  # fmt: skip

OTHER_ERRORS: list[Row] = [
    # Rate limits, also if they mention tokens
    Row("OpenAI, tokens a minute", 429, error(TPM, "tokens", "rate_limit_exceeded"), TransientError),
    Row("LiteLLM, tokens a minute", 429, litellm(f"litellm.RateLimitError: OpenAIException - {TPM}", "429"),
        TransientError),
    Row("LiteLLM, tokens a minute, as 500", 500, litellm(f"litellm.APIError: too many tokens. {TPM}", "500"),
        TransientError),
    Row("Groq, tokens a minute, as 413", 413, error(
        "Request too large for model `llama` in organization `org_x` service tier `on_demand` on tokens per minute "
        "(TPM): Limit 6000, Requested 8062, please reduce your message size and try again.",
        "tokens", "rate_limit_exceeded"), TransientError),
    Row("Bedrock", 429, {"message": "Too many tokens, please wait before trying again."}, TransientError),
    Row("Azure", 429, {"error": {"code": "429", "message":
        "Requests to the ChatCompletions_Create Operation under Azure OpenAI API have exceeded token rate limit of "
        "your current OpenAI S0 pricing tier. Please retry after 9 seconds."}}, TransientError, "answered 429:"),
    Row("Gemini, a minute's quota", 429, [{"error": {
        "code": 429, "status": "RESOURCE_EXHAUSTED", "message":
        "You exceeded your current quota, please check your plan and billing details.\n* Quota exceeded for metric: "
        "generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 10\nPlease retry in 17.3s."}}],
        TransientError),
    Row("LiteLLM, a rate and then a fallback that is too small", 503, litellm(
        "litellm.RateLimitError: slow down. Error doing the fallback: litellm.ContextWindowExceededError: too long",
        "503"), TransientError),
    Row("a proxy, as 400", 400, error("Rate limit reached", code="rate_limit_exceeded"), TransientError),
    Row("LiteLLM, a pause after errors", 429, litellm(
        "No deployments available for selected model, Try again in 5 seconds. All deployments for selected model are "
        "in cooldown. Passed model=small. pre-call-checks=False, cooldown_list=['9669aa']", "429",
        "all_deployments_in_cooldown"), TransientError),
    Row("Groq, the flex tier", 498, error("Flex tier capacity exceeded", "capacity_exceeded"), TransientError),
    # Server errors
    Row("OpenRouter, in a choice", 200, _choice("", error={"code": 502, "message": "Provider disconnected"}),
        TransientError, "answered 502: Provider disconnected"),
    Row("OpenRouter, in a choice, of its words", 200, _choice("It i"), TransientError, "ended in an error"),
    Row("vLLM", 500, bare("Internal server error", 500, "InternalServerError"), TransientError),
    Row("Cloudflare", 502, "<html><title>502 Bad Gateway</title></html>", TransientError),
    # Problems of every request
    Row("OpenAI, a parameter", 400, error(
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        code="unsupported_parameter", param="max_tokens"), ProviderRefusal,
        "Rename models.small.max_tokens to max_completion_tokens"),
    Row("OpenAI, the answer's limit", 400, error(
        "max_tokens is too large: 8000. This model supports at most 4096 completion tokens, whereas you provided 8000.",
        param="max_tokens"), ProviderRefusal, "models.small.max_tokens"),
    Row("OpenAI, a long user", 400, error(
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 80 "
        "instead.", code="string_above_max_length", param="user"), ProviderRefusal, "models.small.user"),
    Row("OpenAI, another parameter", 400, error("no", param="prompt_cache_key"), ProviderRefusal,
        "models.small.prompt_cache_key"),
    Row("OpenRouter, the answer's limit", 400, {"error": {
        "message": "This endpoint's maximum context length is 262000 tokens. However, you requested about 263390 "
        "tokens (658 of text input, 732 of tool input, 262000 in the output). Please reduce the length of either one.",
        "code": 400}}, ProviderRefusal, "lower models.small."),
    Row("LiteLLM, a parameter", 400, litellm(
        "litellm.UnsupportedParamsError: openai does not support parameters: ['logprobs'], for model=o3"),
        ProviderRefusal),
    Row("vLLM, the model", 404, error("The model `x` does not exist.", "NotFoundError", 404, "model"), ProviderRefusal,
        "models.small.model"),
    Row("LiteLLM, the model", 400, litellm(
        "/chat/completions: Invalid model name passed in model=x. Call `/v1/models` to view available models."),
        ProviderRefusal),
    Row("FastAPI, a parameter", 422, {"detail": [
        {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 1}]},
        ProviderRefusal, "models.small.seed"),
    Row("OpenAI, the key", 401, error("Incorrect API key provided", code="invalid_api_key"), ProviderRefusal,
        "needs a key, and none was sent; set models.small.api_key_env"),
    Row("xAI, the key", 400, {"code": "Client specified an invalid argument", "error":
        "Incorrect API key provided: xa***xx. You can obtain an API key from https://console.x.ai."}, ProviderRefusal,
        "The server needs a key"),
    Row("Gemini, the key", 400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message":
        "API key not valid. Please pass a valid API key."}}], ProviderRefusal,
        "answered 400: API key not valid. Please pass a valid API key.\nThe server needs a key"),
    Row("LiteLLM without a database, the key", 400, litellm("No connected db.", kind="no_db_connection"),
        ProviderRefusal, "needs a key"),
    Row("LiteLLM, its own key", 401, litellm(
        "litellm.AuthenticationError: AuthenticationError: OpenAIException - Incorrect API key provided" + NO_FALLBACK,
        "401", "authentication_error"), ProviderRefusal, "does not accept the key of the proxy"),
    Row("LiteLLM, a parameter of vLLM", 400, litellm(
        "litellm.BadRequestError: Hosted_vllmException - " + json.dumps(error(
            "Unsupported: 'temperature'", code="unsupported_parameter", param="temperature")) + NO_FALLBACK,
        kind="invalid_request_error"), ProviderRefusal, "models.small.temperature"),
    Row("LiteLLM, a truncated error of vLLM", 400, litellm(
        'litellm.BadRequestError: Hosted_vllmException - {"error":{"message":"Unsupported: '), MalformedError),
    # Problems that may affect one request only
    Row("vLLM, a chat template", 400, bare("Conversation roles must alternate user/assistant/user/assistant/..."),
        ProviderRefusal, "set models.small.chat_format to alternating."),
    Row("vLLM, Gemma 2's template", 400, bare("System role not supported"), ProviderRefusal,
        "set models.small.chat_format to alternating and models.small.system_role to user."),
    Row("transformers, Qwen 3.5's template", 500, bare("No user query found in messages.", 500), ProviderRefusal,
        "set models.small.chat_format to alternating."),
    Row("llama.cpp, a chat template", 500, {"error": {"code": 500, "type": "server_error", "message":
        "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n...\nError: Jinja Exception: "
        "Conversation roles must alternate user/assistant/user/assistant/..."}}, ProviderRefusal, "chat_format to alt"),
    Row("OpenAI, a message", 400, error(
        "Invalid value for 'content': expected a string, got null.", param="messages.[1].content"), MalformedError,
        "settings in models.small"),
    Row("LiteLLM", 400, litellm(f"litellm.BadRequestError: OpenAIException - no{SUFFIX}"), MalformedError),
    Row("nginx, its limit", 413, "<html><title>413 Request Entity Too Large</title></html>", MalformedError),
    Row("Caddy, its limit", 413, "", MalformedError, "raise its limit"),
    Row("vLLM, quoting a prompt with our words in it", 400, bare(
        "[{'type': 'string_type', 'loc': ('body', 'messages', 0, 'content'), 'msg': 'Input should be a valid string', "
        "'input': 'is the context window exceeded? prompt is too long; insufficient_quota'}]"), MalformedError),
]  # fmt: skip

ROWS = {
    f"{row.source} {row.status} {row.expected.__name__}": row for row in (*CONTEXT, *POLICY, *BILLING, *OTHER_ERRORS)
}
