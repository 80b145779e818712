"""What `octet serve` shows at /metrics, read by the official parser: names, types, histograms, and counts that agree with
what was asked. Skipped where python3 lacks prometheus_client. Usage: serve_metrics_test.py OCTET TEXT"""

import pathlib
import sys
import tempfile

from rank_runs import wait_until
from served import Served, ask, train_tiny

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("skipped: python3 has no prometheus_client")
    sys.exit(77)

HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds",
              "e2e_request_latency_seconds"]
GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"]
COUNTERS = ["prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits",
            "request_success", "requests_refused", "ignored_fields", "access_log_dropped", "trace_spans_dropped"]


def scrape(url):
    """Families by name. The parser itself refuses what is no text format: names, labels, escapes, values."""
    status, text = ask(url + "/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family stands in two places"
    return {family.name: family for family in families}


def check_histogram(family):
    samples = {name: [one for one in family.samples if one.name == family.name + name] for name in ("_bucket", "_sum", "_count")}
    bounds = [float(one.labels["le"]) for one in samples["_bucket"]]
    counts = [one.value for one in samples["_bucket"]]
    assert bounds == sorted(bounds) and bounds[-1] == float("inf"), bounds
    assert counts == sorted(counts) and counts[-1] == samples["_count"][0].value, counts
    total, least = samples["_sum"][0].value, 0.0
    for bound, count, before in zip(bounds[:-1], counts, [0, *counts]):
        least += 0 if count == before else (count - before) * ([0, *bounds][bounds.index(bound)])
    assert total >= least, (family.name, total, least)
    return counts[-1]


def check(octet, model, prefix, *options):
    with Served(octet, model, *options) as served:
        before = scrape(served.url)
        for name, kind in [*((name, "histogram") for name in HISTOGRAMS), *((name, "gauge") for name in GAUGES),
                           *((name, "counter") for name in COUNTERS)]:
            assert before[prefix + name].type == kind, (name, before[prefix + name].type)
            assert before[prefix + name].documentation
        assert all(name.startswith(prefix) for name in before), before.keys()
        for name, family in before.items():
            if family.type == "histogram":
                assert name.endswith("_seconds") and check_histogram(family) == 0
        prompts, texts, tokens = 0, 0, 0
        for count, body in enumerate([{}, {"n": 3}, {"stream": True}, {"prompt": [[1, 2, 3], [4, 5]]}]):
            asked = {"prompt": "the", "max_tokens": 4 + count, "ignore_eos": True, "temperature": 0} | body
            status, reply = ask(served.url + "/v1/completions", asked)
            assert status == 200, reply
            several = isinstance(asked["prompt"], list)
            texts += len(asked["prompt"]) if several else asked.get("n", 1)
            tokens += (4 + count) * (len(asked["prompt"]) if several else asked.get("n", 1))
            prompts += len(asked["prompt"]) if several else 1
        assert ask(served.url + "/v1/completions", {"prompt": 3})[0] == 400
        assert ask(served.url + "/v1/completions", {"prompt": "the", "max_tokens": 1, "odd": 1})[0] == 200

        def value(name, **labels):
            family = scrape(served.url)[prefix + name]
            return sum(one.value for one in family.samples if labels.items() <= one.labels.items())

        # Counted behind the reply's last byte.
        wait_until(lambda: value("request_success", finished_reason="length") == 5, "every request is counted")
        assert value("requests_refused", reason="invalid") == 1
        assert value("ignored_fields") == 1
        assert value("generation_tokens") == tokens + 1
        assert value("num_requests_running") == 0 and value("num_requests_waiting") == 0
        after = scrape(served.url)
        for name in HISTOGRAMS:
            count = check_histogram(after[prefix + name])
            if name.startswith("inter"):  # tokens that come together with a text's first one have no time between them
                assert 0 < count <= tokens - texts, (name, count)
            else:
                assert count == prompts + 1, (name, count)


def main():
    octet, text = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        model = train_tiny(octet, text, pathlib.Path(folder))
        check(octet, model, "octet_")
        check(octet, model, "vllm:", "--metric-names", "vllm")


main()
