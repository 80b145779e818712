// The server over the engine on the fake runner, its clients in a thread of the same process: events of streams and
// requests of one token, each kept connection asking again once it is answered.
//   octet_serve_bench
#include "serve/server.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include "infer/testing/engine_test.h"
#include "serve/testing/peer.h"

namespace octet::serve {
namespace {

// Kept connections that ask the same again and again.
class Clients {
 public:
  Clients(int port, int64_t connections, std::string request, std::string_view end)
      : request_(std::move(request)), end_(end), epoll_(::epoll_create1(0)) {
    for (int64_t i = 0; i < connections; ++i) {
      peers_.push_back(std::make_unique<Peer>(port));
      epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(i)}};
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, peers_.back()->socket(), &event);
    }
    tails_.resize(peers_.size());
  }
  ~Clients() { ::close(epoll_); }
  Clients(const Clients&) = delete;

  // Each connection asks `requests` times; events of streams received, -1: a connection broke.
  int64_t ask(int64_t requests) {
    for (const auto& peer : peers_) peer->send(request_);
    std::vector<int64_t> left(peers_.size(), requests);
    int64_t open = static_cast<int64_t>(peers_.size()), events_seen = 0;
    std::vector<epoll_event> events(256);
    std::vector<char> block(64 << 10);
    while (open > 0) {
      const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 20'000);
      if (count <= 0) return -1;
      for (int i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(events[static_cast<size_t>(i)].data.u64);
        const ssize_t got = ::recv(peers_[at]->socket(), block.data(), block.size(), 0);
        if (got <= 0) return -1;
        for (std::string_view rest(block.data(), static_cast<size_t>(got)); !rest.empty();) {
          const size_t line = rest.find("data: {");
          if (line == std::string_view::npos) break;
          ++events_seen, rest.remove_prefix(line + 7);
        }
        std::string& tail = tails_[at];
        tail.append(block.data(), static_cast<size_t>(got));
        if (!tail.ends_with(end_)) {
          if (tail.size() > end_.size()) tail.erase(0, tail.size() - end_.size());
          continue;
        }
        tail.clear();
        if (--left[at] > 0) {
          peers_[at]->send(request_);
        } else {
          --open;
        }
      }
    }
    return events_seen;
  }

 private:
  const std::string request_, end_;
  const int epoll_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::string> tails_;
};

struct Served {
  explicit Served(int64_t sequences, double step_seconds) {
    RunnerLimits limits = fake_limits(/*blocks=*/sequences * 64, /*block_size=*/16, /*context=*/1024);
    limits.sequences = limits.rows = limits.masks = sequences, limits.tokens = 8 * sequences;
    EngineOptions options;
    options.max_sequences = sequences, options.max_step_tokens = limits.tokens;
    engine = test_engine({.limits = limits, .step_seconds = step_seconds, .checks = false}, options);
    tokenizer = test_tokenizer();
    model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {"tiny"};
    server = std::make_unique<Server>(model, ServerOptions{.http = {.port = 0}, .parsers = 1});
  }
  std::unique_ptr<EngineLoop> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  ApiModel model;
  std::unique_ptr<Server> server;
};

std::string post(const std::string& body) {
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", body.size(),
                     body);
}

// Each step of the engine gives every stream a token; what the server cannot send at once, it sends as one event.
void stream_events(benchmark::State& state) {
  const int64_t streams = state.range(0), tokens = 500;
  Served served(streams, static_cast<double>(state.range(1)) * 1e-6);
  Clients clients(
      served.server->port(), streams,
      post(fmt::format(R"({{"prompt": "BCD", "max_tokens": {}, "ignore_eos": true, "stream": true}})", tokens)),
      "data: [DONE]\n\n\r\n0\r\n\r\n");
  int64_t events = 0;
  for (auto _ : state) {
    const int64_t seen = clients.ask(1);
    if (seen < 0) return state.SkipWithError("a connection broke");
    events += seen;
  }
  state.SetItemsProcessed(events);
  state.counters["tokens an event"] =
      static_cast<double>(state.iterations() * streams * tokens) / static_cast<double>(events);
}
BENCHMARK(stream_events)
    ->ArgNames({"streams", "step_us"})
    ->ArgsProduct({{64, 512}, {1000, 4000, 8000}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void one_token_requests(benchmark::State& state) {
  const int64_t connections = state.range(0), requests = 100;
  Served served(connections, 0);
  Clients clients(served.server->port(), connections, post(R"({"prompt": "BCD", "max_tokens": 1, "ignore_eos": true})"),
                  "}}}");
  for (auto _ : state)
    if (clients.ask(requests) < 0) return state.SkipWithError("a connection broke");
  state.SetItemsProcessed(state.iterations() * connections * requests);
}
BENCHMARK(one_token_requests)->Arg(64)->Arg(512)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet::serve
