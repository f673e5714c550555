"""Completions over HTTP: answers, refusals, and input that is none; uvicorn on real sockets."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from gatecount.frontend.http import LARGE_BODY, MAX_BODY, CompletionRequest
from gatecount.frontend.settings import EngineSettings
from host.serving import (
    LONG,
    MANY,
    PLAIN,
    SLOW,
    BrokenRenderer,
    Wire,
    completion,
    events,
    get,
    metric,
    refusal_of,
    serve,
)
from support import DEADLINE, wait_until

# --- answers --------------------------------------------------------------------------------------


def test_a_plain_answer_has_the_text_of_every_sample(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=3)
    answer = completion(server.url, n=3, max_tokens=4).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": index, "text": " 1 2 3 4", "logprobs": None, "finish_reason": "length"}
        for index in range(3)
    ]
    assert host.is_empty()


def test_a_stream_sends_each_token_as_an_event_and_ends_with_done(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=2)
    response = completion(server.url, n=2, max_tokens=3, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, done = events(response.text)
    assert done == "[DONE]"
    assert len({part["id"] for part in parts}) == 1
    choices = [choice for part in parts for choice in part["choices"]]
    for index in range(2):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["text"] for choice in mine] == [" 1", " 2", " 3"]
        assert [choice["finish_reason"] for choice in mine] == [None, None, "length"]
    assert host.is_empty()


def test_a_list_of_token_ids_is_a_prompt_and_unknown_fields_are_ignored(hosts: ExitStack) -> None:
    host, server = serve(hosts)
    body = {"prompt": [1, 2, 3], "temperature": 0.5, "model": "x", "n": None, "max_tokens": None}
    answer = completion(server.url, **body).json()
    assert answer["choices"][0]["text"].split() == [str(number) for number in range(1, 17)]
    assert host.is_empty()


# --- refusals -------------------------------------------------------------------------------------


def test_a_refusal_is_503_says_when_to_come_again_and_counts_once_whatever_n_is(
    hosts: ExitStack,
) -> None:
    host, server = serve(hosts, limit=3, engine=LONG)
    with Wire(server.port):
        wait_until(lambda: host.table.unfinished == 1)
        waits = set()
        for stream in (False, True) * 15:
            response = completion(server.url, n=3, stream=stream)
            assert "busy, try again" in refusal_of(response, 503)
            assert response.headers["content-type"] == "application/json"
            waits.add(response.headers["retry-after"])
        assert host.admission.requests_in_flight == 1
    assert all(wait.isdecimal() and int(wait) >= 1 for wait in waits)
    assert len(waits) > 1, "all refused clients would come again together"
    assert host.row.refused("requests") == 30
    assert (host.row.refused("tokens"), host.row.admitted) == (0, 1)
    wait_until(host.is_empty)


def test_three_samples_against_a_cap_of_three_with_one_in_flight_are_refused_whole(
    hosts: ExitStack,
) -> None:
    host, server = serve(hosts, limit=3, engine=LONG)
    with Wire(server.port) as one:
        wait_until(lambda: host.table.unfinished == 1)
        refusal_of(completion(server.url, n=3), 503)
        one.hang_up()
        wait_until(host.is_empty)
        with Wire(server.port, n=3):
            wait_until(lambda: host.table.unfinished == 3)
            refusal_of(completion(server.url), 503)
    wait_until(host.is_empty)


def test_the_token_cap_refuses_before_rendering_and_leaves_the_request_cap_alone(
    hosts: ExitStack,
) -> None:
    engine = EngineSettings(service_time=100, prefill_time=1e6)
    host, server = serve(hosts, limit=10, token_limit=4, engine=engine)
    with Wire(server.port), Wire(server.port):
        wait_until(lambda: host.admission.tokens_in_flight == 6)
        assert "tokens are in prefill" in refusal_of(completion(server.url), 503)
        assert (host.admission.requests_in_flight, host.row.refused("tokens")) == (2, 1)
        assert "busy" in refusal_of(completion(server.url, prompt=None), 503)
        assert metric(server.url, "gatecount_engine_prefill_tokens") == 6
    wait_until(host.is_empty)


def test_prompt_tokens_leave_at_the_end_of_prefill_while_the_request_goes_on(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=10, token_limit=3, engine=SLOW)
    with Wire(server.port, max_tokens=MANY, n=2, stream=True) as first:
        first.read_until(b"data: ")
        assert host.admission.tokens_in_flight == 0
        with Wire(server.port, max_tokens=MANY, stream=True) as second:
            second.read_until(b"data: ")
            assert host.admission.requests_in_flight == 3
    wait_until(host.is_empty)


def test_a_connection_serves_on_after_a_refusal_and_after_an_error(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=1)
    server.call(lambda: host.admission.check_admission(1, "another"))
    with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
        for n, status in ((1, 503), (1, 200), (0, 400), (1, 200)):
            body = {"prompt": "one", "max_tokens": 1, "n": n}
            response = client.post("/v1/completions", json=body)
            assert response.status_code == status
            server.call(lambda: host.admission.release("another"))
    assert host.is_empty()


def test_a_refusal_and_what_is_too_large_are_told_before_the_body_is_there(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=1)
    for size, status in ((99, b"503"), (MAX_BODY + 1, b"413")):
        if status == b"503":
            server.call(lambda: host.admission.check_admission(1, "another"))
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 " + status)
        server.call(lambda: host.admission.release("another"))
    assert host.row.refused("requests") == 1
    assert host.is_empty()


def test_a_client_that_still_sends_reads_its_refusal_and_its_connection_serves_on(
    hosts: ExitStack,
) -> None:
    host, server = serve(hosts, limit=1)
    server.call(lambda: host.admission.check_admission(1, "another"))
    with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
        for _ in range(3):
            refusal_of(client.post("/v1/completions", content=b"x" * (20 << 20)), 503)
        server.call(lambda: host.admission.release("another"))
        refusal_of(client.post("/v1/completions", content=b"x" * (20 << 20)), 413)
        body = {"prompt": "one", "max_tokens": 1}
        assert client.post("/v1/completions", json=body).status_code == 200
    assert host.row.refused("requests") == 3
    assert host.is_empty()


def test_more_samples_than_the_cap_has_places_are_a_bad_request_and_no_refusal(
    hosts: ExitStack,
) -> None:
    host, server = serve(hosts, limit=5)
    for stream in (False, True):
        message = refusal_of(completion(server.url, n=6, stream=stream), 400)
        assert message == "n = 6 is more than max_num_queued_reqs = 5"
    assert completion(server.url, n=5).status_code == 200
    assert (host.row.admitted, host.row.refused("requests")) == (1, 0)
    assert host.is_empty()


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_error_between_the_two_tests_gives_the_reservation_back(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=2, renderer=BrokenRenderer())
    for stream in (False, True):
        assert refusal_of(completion(server.url, n=2, stream=stream), 500) == "Internal server error."
        assert host.is_empty()
    assert host.row.admitted == 0


@pytest.mark.parametrize("prompt", [None, "", "  ", [], [1, -1], [1.5], [True], ["a"], {}, 7])
def test_what_is_no_prompt_is_a_bad_request(hosts: ExitStack, prompt: Any) -> None:
    host, server = serve(hosts, limit=2)
    for stream in (False, True):
        message = refusal_of(completion(server.url, prompt=prompt, stream=stream, n=2), 400)
        assert message.startswith("prompt must")
    assert host.is_empty()
    assert (host.row.admitted, host.row.refused("requests")) == (0, 0)


@pytest.mark.parametrize("name", ["n", "max_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, "1", True, [1], {}, 10**9, 10**400])
def test_a_parameter_out_of_range_is_a_bad_request(hosts: ExitStack, name: str, value: Any) -> None:
    host, server = serve(hosts, limit=2)
    message = refusal_of(completion(server.url, **{name: value}), 400)
    assert message.startswith(f"{name} must be an integer from 1 to ")
    assert host.row.refused("requests") == 0
    assert host.is_empty()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"prompt"',
        b"\xff\xfe\xfd",
        b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
        b"[" * 200_000,
        b'{"prompt": "a", "stream": 1}',
        b'{"prompt": "a", "stream": "yes"}',
        b'{"prompt": "a", "n": NaN}',
        b'{"prompt": "a", "n": Infinity}',
    ],
)
def test_what_is_no_request_is_a_bad_request(hosts: ExitStack, body: bytes) -> None:
    host, server = serve(hosts)
    response = httpx.post(f"{server.url}/v1/completions", content=body, **PLAIN)
    assert len(refusal_of(response, 400)) < 200
    assert host.is_empty()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"null", "the body must be a JSON object, not null"),
        (b"true", "the body must be a JSON object, not a boolean"),
        (b"7", "the body must be a JSON object, not a number"),
        (b"7.5", "the body must be a JSON object, not a number"),
        (b'"a"', "the body must be a JSON object, not a string"),
        (b"[]", "the body must be a JSON object, not an array"),
        (b'{"n": ' + b"9" * 5000 + b"}", "the body has an integer of too many digits"),
        (b'{"prompt": "\xff"}', "the body is not JSON: it is not UTF-8"),
        (b"{", "the body is not JSON: Expecting property name"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_the_words_of_json(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}") as refused:
        CompletionRequest.parse(body)
    assert "sys." not in str(refused.value)


def test_only_a_large_body_is_parsed_where_prompts_are_rendered(
    hosts: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = CompletionRequest.parse, []

    def noting(body: bytes) -> CompletionRequest:
        threads.append(threading.current_thread().name.startswith("gatecount-render"))
        return parse(body)

    monkeypatch.setattr(CompletionRequest, "parse", noting)
    host, server = serve(hosts, limit=1)
    for words in (1, LARGE_BODY, 1):
        assert completion(server.url, prompt="a " * words).status_code == 200
    assert threads == [False, True, False]
    assert len(refusal_of(completion(server.url, prompt="a " * LARGE_BODY, n=0), 400)) < 200
    assert host.is_empty()


def test_other_paths_methods_and_sizes_are_refused_in_the_same_shape(
    hosts: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, server = serve(hosts)
    refusal_of(get(server.url, "/nothing"), 404)
    refused = get(server.url, "/v1/completions")
    refusal_of(refused, 405)
    assert refused.headers["allow"] == "POST"
    monkeypatch.setattr("gatecount.frontend.http.MAX_BODY", 1000)
    assert "1,000 bytes" in refusal_of(completion(server.url, prompt="x" * 1001), 413)
    assert completion(server.url, prompt="x" * 900).status_code == 200
    assert host.is_empty()


# --- full load ------------------------------------------------------------------------------------


def test_health_and_metrics_answer_under_full_load_and_are_never_refused(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=2, engine=LONG)
    with ExitStack() as clients:
        for _ in range(2):
            clients.enter_context(Wire(server.port))
        wait_until(lambda: host.table.unfinished == 2)
        refusal_of(completion(server.url), 503)
        for _ in range(20):
            assert get(server.url, "/health").status_code == 200
            assert httpx.head(f"{server.url}/health", **PLAIN).status_code == 200
            assert metric(server.url, 'gatecount_in_flight{cap="requests"}') == 2
        assert host.row.refused("requests") == 1
    wait_until(host.is_empty)
