// The inference engine: open a model, submit requests from any thread, stream their tokens.
//
//   auto engine = octet::Engine::open("path/to/model", {.device = "auto"});
//   auto stream = engine->submit({.prompt = "Once upon a time", .max_tokens = 64});
//   for (octet::GenerationEvent event; stream.next(event);) std::cout << event.text << std::flush;
//
// Requests join and leave the running batch between steps. A request is a value with a status: whatever is wrong with
// it ends that request with an error event; open() throws for a folder or options that cannot run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/sampling.h"

namespace octet {

enum class SchedulingPolicy : uint8_t {
  kNeverEvict,      // a request is admitted when its longest possible text fits the cache
  kMaxUtilization,  // admitted when its prompt fits; when the cache is full the youngest is preempted and recomputed
  kPackedLockstep,  // a batch runs until its last request is done, then the next (for comparison)
  kPaddedStatic,    // the same with every request padded to the longest of the batch (for comparison)
};

// What an engine is about to hold: known before weights are read or made, which may take minutes.
struct EnginePlan {
  int64_t matrix_elements = 0;  // of weight matrices and tables
  int64_t weight_bytes = 0, activation_bytes = 0, kv_bytes = 0;
  int64_t kv_tokens = 0;   // that the cache has room for
  int64_t context = 0;     // tokens a sequence may reach
  int64_t free_bytes = 0;  // of the device's memory; 0 = not known
  std::string device = {}, recipe = {};
};

struct EngineOptions {
  std::string device = "auto";     // auto | cpu | cuda
  std::string recipe = {};         // fp32 | bf16 | fp8-current | int8 | ...; empty: as the folder says, else bf16
  std::string kv_cache = {};       // f32 | bf16 | e4m3; empty: as the folder says, else the recipe's compute type
  std::string tokenizer = {};      // file or folder; empty: the model's own
  bool needs_tokenizer = true;     // false: a model without one is served too, ids in and ids out
  int64_t context = 0;             // tokens a sequence may reach; 0 = the model's
  int64_t max_sequences = 256;     // running at once
  int64_t max_step_tokens = 2048;  // tokens of one step, prompts and decoding together
  int64_t block_size = 0;          // tokens of a cache block; 0 = chosen for the device
  int64_t kv_cache_bytes = 0;      // 0: what is left of memory_fraction
  double memory_fraction = 0.9;    // of the device's free memory (on CPUs 0.5 at most)
  int64_t max_waiting = 100'000;   // requests; more are refused
  SchedulingPolicy policy = SchedulingPolicy::kMaxUtilization;
  bool prefix_cache = true;
  bool random_weights = false;  // the path is a named model or a folder without weights: for benchmarks
  std::function<void(const EnginePlan&)> planned = {};  // called by open() when memory is there, before weights are
};

struct GenerationRequest {
  std::string prompt = {};
  std::vector<int32_t> prompt_ids = {};  // instead of prompt
  SamplingOptions sampling = {};
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;              // no end token or stop id before so many
  int64_t n = 1;                       // texts from one prompt
  int64_t logprobs = -1;               // -1: none; k: of the chosen token and the k likeliest (at most 20)
  std::vector<std::string> stop = {};  // the text ends before the first of these
  std::vector<int32_t> stop_ids = {};  // the text ends before these ids
  bool ignore_eos = false;
  bool parse_special = false;   // recognise special tokens written in the prompt
  bool add_bos = true;          // where the model was trained with one
  int32_t priority = 0;         // higher first
  double timeout_seconds = 0;   // from submission; 0 = none
  std::string cache_salt = {};  // prefixes are shared only between requests of one salt
  // Called before each token is drawn, while the device works: clears bits of tokens that must not come next (bit v
  // mod 32 of word v / 32). Empty: every token may.
  std::function<void(int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed)> mask = {};
};

enum class FinishReason : uint8_t { kNone, kLength, kStop, kContext, kCancelled, kTimeout, kError };
const char* finish_reason_name(FinishReason reason);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// What became known of one text of a request.
struct GenerationEvent {
  int64_t sample = 0;                          // 0 .. n-1
  std::string text;                            // certain text: whole characters, no part of a stop string
  std::vector<int32_t> ids;                    // tokens since the last event
  std::vector<TokenLogprob> logprobs;          // of ids, if asked for
  std::vector<std::vector<TokenLogprob>> top;  // of ids, likeliest first, if asked for
  FinishReason finished = FinishReason::kNone;
  std::string error;  // of kError and kTimeout
};

struct RequestTimes {  // seconds since the request was submitted; 0 = not yet
  double scheduled = 0, first_token = 0, last_token = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, preemptions = 0;
};

class StreamState;  // of the engine's side

// The receiving end of a request. Destroying it cancels the request. Movable, one thread at a time; it may outlive the
// engine. A slow reader holds nobody up: what it has not taken yet is one growing event a text.
class GenerationStream {
 public:
  // Waits for the next event; false when all texts are finished and every event was taken.
  bool next(GenerationEvent& event);
  bool try_next(GenerationEvent& event);  // without waiting
  void cancel();                          // ends all texts with kCancelled
  RequestTimes times() const;

  explicit GenerationStream(std::shared_ptr<StreamState> state);  // engines make them
  GenerationStream(GenerationStream&&) noexcept;
  GenerationStream& operator=(GenerationStream&&) noexcept;
  ~GenerationStream();

 private:
  std::shared_ptr<StreamState> state_;
};

struct EngineStats {
  int64_t waiting = 0, running = 0, finished = 0, failed = 0, cancelled = 0, preemptions = 0;
  int64_t steps = 0, prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, padded_tokens = 0;
  int64_t kv_blocks = 0, kv_blocks_used = 0, kv_blocks_cached = 0, kv_bytes = 0;
  double seconds = 0, host_seconds = 0, wait_seconds = 0;  // of steps: in all, host work, waiting for the device
};

class Engine {
 public:
  // `model`: a Hugging Face folder, a checkpoint or a llama2.c file. Throws an exception whose what() says the value at
  // fault and the way out.
  static std::unique_ptr<Engine> open(const std::string& model, const EngineOptions& options = {});
  virtual ~Engine();  // cancels what still runs

  // From any thread. A request that cannot run gives one event: kError, with the value at fault and the way out.
  virtual GenerationStream submit(GenerationRequest request) = 0;
  virtual EngineStats stats() const = 0;
  virtual const EngineOptions& options()
      const = 0;             // as given to open(), with the device, recipe and cache type chosen
  virtual void drain() = 0;  // waits until nothing waits or runs
  virtual int64_t context() const = 0;
  virtual int64_t vocab_size() const = 0;
};

}  // namespace octet
