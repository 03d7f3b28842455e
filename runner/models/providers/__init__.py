"""Who answers a request: OpenAI and servers like it, a batch of calls, the dummy, an earlier run."""
