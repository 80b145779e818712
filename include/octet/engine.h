// The inference engine: open a model, submit requests from any thread, stream their tokens.
//
//   auto engine = octet::Engine::open("path/to/model", {.device = "auto"});
//   auto stream = engine->submit({.prompt = "Once upon a time", .max_tokens = 64});
//   for (octet::GenerationEvent event; stream.next(event);) std::cout << event.text << std::flush;
//
// Requests join and leave the running batch between steps. An invalid or failing request ends with an error event and
// does not affect others; open() throws for a folder or options that cannot run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/sampling.h"

namespace octet {

enum class SchedulingPolicy : uint8_t {
  kNeverEvict,      // a request is admitted when the cache has room for its maximum length
  kMaxUtilization,  // admitted when its prompt fits; when the cache is full the youngest is preempted and recomputed
};

inline constexpr int64_t kMaxDraftTokens = 15;  // of a sequence in a step
inline constexpr int64_t kMaxBeams = 10;

// When a beam search ends that has found as many sequences as it has beams (docs/serving.md).
enum class EarlyStopping : uint8_t {
  kNo,     // when the best beam, at its present length, is no better than the worst of them
  kYes,    // at once
  kNever,  // when no beam can become better than the worst of them
};

// Memory plan of an engine, of each of its ranks, known before weights are loaded, which may take minutes.
struct EnginePlan {
  int64_t matrix_elements = 0;  // elements of weight matrices and embedding tables
  int64_t weight_bytes = 0, activation_bytes = 0, kv_bytes = 0;
  int64_t kv_blocks = 0, kv_tokens = 0;       // capacity of the KV cache
  int64_t context = 0;                        // maximum tokens of a sequence
  int64_t free_bytes = 0;                     // free memory of the rank that has the least; 0 = not known
  std::vector<int64_t> rank_free_bytes = {};  // of each rank
  std::string device = {}, recipe = {};
};

// What an engine that encodes whole texts gives of one: an embedding, or the classes of a classifier.
struct EncoderFacts {
  bool classifies = false;                          // one class: a score, of pairs of texts usually; sigmoid by default
  int64_t width = 0;                                // values of a result
  std::string pooling = {};                         // cls | mean | last: of which hidden states an embedding is made
  bool normalize = true;                            // to length 1, where a request says nothing
  std::map<std::string, std::string> prompts = {};  // texts in front of an input, by name
  std::string default_prompt = {};                  // a name of these; empty: none
  bool include_prompt = true;                       // false: GenerationRequest::left_out wants the prompt's tokens
};

struct EngineOptions {
  std::string task = {};        // generate | embed; empty: embed for encoders and models without a head, else generate
  std::string pooling = {};     // of embeddings: cls | mean | last; empty: as the folder says (docs/serving.md)
  std::string device = "auto";  // auto | cpu | cuda
  // Ranks that share the model, with a GPU or a part of the CPU each: threads of this process, or the processes that a
  // launcher has started, as many (docs/serving.md).
  int64_t tensor = 1;
  double rank_timeout = 60;        // seconds that a step waits for a rank; then every request ends with kind device
  std::string build = {};          // of the program, if it is to be equal in all processes
  std::string recipe = {};         // fp32 | bf16 | fp8-current | int8 | ...; empty: the folder's, else bf16
  std::string kv_cache = {};       // f32 | bf16 | e4m3 | int8; empty: the folder's, else the recipe's compute type
  std::string tokenizer = {};      // file or folder; empty: the model's own
  bool needs_tokenizer = true;     // false: a model without a tokenizer is served with token ids only
  int64_t context = 0;             // maximum tokens of a sequence; 0 = the model's
  int64_t max_sequences = 256;     // maximum number of running sequences
  int64_t max_step_tokens = 2048;  // token budget of a step: prefill and decode together
  int64_t block_size = 0;          // tokens per KV cache block; 0 = the device's default
  int64_t kv_cache_bytes = 0;      // 0: what memory_fraction leaves
  double memory_fraction = 0.9;    // of the device's free memory (on CPUs 0.5 at most)
  int64_t max_waiting = 100'000;   // queued sequences; more are refused
  int64_t max_waiting_tokens = 100'000'000;  // prompt tokens of queued requests; more are refused
  SchedulingPolicy policy = SchedulingPolicy::kMaxUtilization;
  bool prefix_cache = true;
  bool all_rows = false;  // of a prompt go through the whole last layer, not those alone whose logits are wanted
  // Speculation: "ngram" guesses tokens from what the sequence has said before; the path of a smaller model of the same
  // vocabulary (with random_weights its name) has that model guess. Empty: none. Sequences are what they are without.
  std::string draft = {};
  int64_t draft_tokens = 5;      // the most guessed for a sequence in a step, at most kMaxDraftTokens
  bool draft_adaptive = true;    // fewer or none where acceptance and the steps' times, as measured, say so
  double draft_memory = 0.1;     // share of the free memory for a draft model, weights and cache
  double accept_simulated = -1;  // for benchmarks: 0 to 1 accepts each guess by this chance: no text of the model's
  bool random_weights = false;   // for benchmarks: the path is a named model or a folder without weights
  // Adapters that requests may name (docs/serving.md): folders of PEFT by their names, loaded by open(). Others may be
  // loaded later where there are some, or where max_adapters says for how many there is room.
  std::map<std::string, std::string> adapters = {};
  int64_t max_adapters = 0;          // on the device at once, of each class of ranks; 0: those given, at most 64
  int64_t max_adapter_rank = 0;      // of those loaded later; 0: the highest of those given, 16 where none is
  std::string adapter_targets = {};  // linears that they adapt, "attn.q,attn.v"; empty: those given adapt, or all
  std::function<void(const EnginePlan&)> planned = {};  // called by open() before weights are loaded
};

struct GenerationRequest {
  std::string prompt = {};
  std::vector<int32_t> prompt_ids = {};  // instead of prompt
  SamplingOptions sampling = {};
  int64_t max_tokens = 256;  // 0: nothing is sampled
  int64_t min_tokens = 0;    // end tokens and stop ids are forbidden before this many, stop strings end no text in them
  int64_t n = 1;             // sequences sampled from the prompt, or the best sequences of a beam search
  // Beam search of this width, at most kMaxBeams; 0: sampling. The sequences come at its end, best first. Takes
  // stop_ids, min_tokens, logit_bias and masks, no stop strings and no other sampling options; it has no drafts.
  int64_t beams = 0;
  double length_penalty =
      1;  // of beams: a sequence's score is the sum of its log-probabilities / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kNo;
  int64_t logprobs = -1;  // -1: none; k: of the sampled token and the k most likely (at most 20)
  // As logprobs, of the prompt's tokens from prompt_logprobs_from on (the first has none); for n = 1. Tokens in front
  // of these come from the prefix cache where it has them; these are computed in chunks of as many tokens as a step has
  // rows to sample (max_sequences, less the sequences that decode). With max_tokens 0 the last token is scored and not
  // computed, so the prompt may have one token more than the context.
  int64_t prompt_logprobs = -1;
  int64_t prompt_logprobs_from = 1;
  std::vector<std::string> stop = {};  // stop strings, or special tokens by their text; not part of the output,
  bool include_stop = false;           // unless this is set
  std::vector<int32_t> stop_ids = {};  // stop tokens; not part of the output
  bool ignore_eos = false;
  int64_t draft_tokens = -1;  // at most so many tokens guessed in a step; 0: no speculation, -1: as the engine does
  bool skip_special_tokens = true;  // false: the text shows special tokens as they are written
  bool parse_special = false;       // recognise special tokens written in the prompt
  bool add_bos = true;              // if the model was trained with one
  // Encodes the whole prompt: the one event holds `values`. What an engine of EncoderFacts takes, and no other.
  bool encode = false;
  std::vector<int32_t> token_types = {};  // of prompt_ids; empty: 0
  int64_t left_out = 0;                   // first tokens that the mean of EncoderFacts without include_prompt skips
  int64_t dimensions = 0;                 // of an embedding, its first ones; 0: all
  std::optional<bool> normalize = {};     // an embedding, after that cut; none: as the engine does
  int32_t priority = 0;                   // higher runs first
  double timeout_seconds = 0;             // from submission; 0 = none
  std::string adapter = {};               // by its name; empty: the model as it is
  std::string cache_salt = {};            // prefix blocks are shared only between requests of equal salt
  // Called before each token is sampled, while the device computes: clears the bits of forbidden tokens (bit v mod 32
  // of word v / 32). Empty: all tokens are allowed. With speculation `generated` may end in tokens that are guessed:
  // the next call need not go on with them. Callbacks of different sequences, also of one request's, run at the same
  // time, on the engine's threads; those of one sequence one after another. Of a beam search `sample` is a beam, 0 ..
  // beams-1, whose tokens may be those of any beam before and one more.
  std::function<void(int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed)> mask = {};
  // How many of `drafts` the mask allows to follow `generated`, one behind another. Empty: not known, the mask is
  // asked. Called from the engine's thread, and not while the sequence's mask is made.
  std::function<int64_t(int64_t sample, std::span<const int32_t> generated, std::span<const int32_t> drafts)> fits = {};
  // Called when the stream has news, and not again until the reader has taken all of it: until try_next() or next() has
  // returned false. From the engine's thread, or inside of submit(); no lock is held. It returns at once and does not
  // throw. One call under way when the stream is destroyed may come just afterwards: what it uses is still there then.
  std::function<void()> on_news = {};
};

enum class FinishReason : uint8_t { kNone, kLength, kStop, kContext, kCancelled, kTimeout, kError };
const char* finish_reason_name(FinishReason reason);

// Why a sequence ended with an error, from which the status of a response follows.
enum class ErrorKind : uint8_t {
  kNone,
  kInvalid,    // the request cannot be served as it is
  kTooLong,    // its prompt or output exceeds the context or the KV cache
  kQueueFull,  // try again later
  kLate,       // timeout_seconds passed
  kDevice,     // the device failed; later requests fail too
  kInternal,   // a fault of the engine, of the model's numbers or of a mask callback, unless that throws an error of
               // an invalid argument (kInvalid) or of memory (kQueueFull)
};
const char* error_kind_name(ErrorKind kind);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// New output of one sequence of a request.
struct GenerationEvent {
  int64_t sample = 0;                                      // 0 .. n-1
  std::string text;                                        // final text: whole characters, no part of a stop string
  std::vector<int32_t> ids;                                // tokens since the last event
  std::vector<TokenLogprob> logprobs;                      // of ids, if requested
  std::vector<std::vector<TokenLogprob>> top;              // of ids, most likely first, if requested
  std::vector<TokenLogprob> prompt_logprobs = {};          // of the prompt's next tokens, if requested
  std::vector<std::vector<TokenLogprob>> prompt_top = {};  // of these, most likely first
  std::vector<float> values = {};                          // of a request that encodes
  double score = 0;                                        // of a sequence of a beam search, at its end
  FinishReason finished = FinishReason::kNone;
  std::string stop = {};  // kStop: the stop string that ended the sequence,
  int32_t stop_id = -1;   // or the end token or stop id
  ErrorKind error_kind = ErrorKind::kNone;
  std::string error = {};  // for kError and kTimeout
};

struct RequestTimes {  // seconds since submission; 0 = not yet
  double scheduled = 0, first_token = 0, last_token = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, preemptions = 0;
};

class StreamState;

// The receiving end of a request. Destroying it cancels the request. Movable, one thread at a time; it may outlive the
// engine. A slow reader does not block the engine: pending output is merged into one event per sequence.
class GenerationStream {
 public:
  // Waits for the next event; false when all sequences are finished and every event was returned.
  bool next(GenerationEvent& event);
  bool try_next(GenerationEvent& event);  // without waiting
  void cancel();                          // ends all sequences with kCancelled
  RequestTimes times() const;

  explicit GenerationStream(std::shared_ptr<StreamState> state);  // created by engines
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
  int64_t drafts = 0;                                      // times that tokens of a sequence were guessed,
  int64_t drafted_tokens = 0;                              // so many tokens in all,
  int64_t accepted_tokens = 0;                             // and of them accepted,
  std::array<int64_t, kMaxDraftTokens> accepted_at = {};   // by their place among those of a step
  bool draft_failed = false;                               // the draft model failed: sequences run without
  double seconds = 0, host_seconds = 0, wait_seconds = 0;  // of all steps: total, host work, waiting for the device
  double since_step = 0;  // seconds since the results of a step arrived, or work came to an idle engine
  bool in_step = false;   // the engine's thread is at work on a step; with a large since_step it hangs
  bool broken = false;    // the device has failed: every request ends with kDevice
};

// One of the adapters that are loaded.
struct AdapterFacts {
  std::string name = {}, folder = {};
  int64_t rank = 0, virtual_tokens = 0;
  int64_t waiting = 0, running = 0;  // requests
};

class Engine {
 public:
  // `model`: a Hugging Face folder, a checkpoint or a llama2.c file. Throws an exception whose what() gives the invalid
  // value and the remedy. In a process that a launcher started as another of `tensor` ranks than 0 it computes for
  // rank 0's engine, and returns null when that has closed, or throws when a rank is lost.
  static std::unique_ptr<Engine> open(const std::string& model, const EngineOptions& options = {});
  virtual ~Engine();  // cancels all requests

  // From any thread. A request that cannot run gets one event: kError, with the invalid value and the remedy.
  virtual GenerationStream submit(GenerationRequest request) = 0;
  virtual EngineStats stats() const = 0;
  virtual const EngineOptions& options()
      const = 0;             // as given to open(), with the device, recipe, cache type and block size chosen
  virtual void drain() = 0;  // waits until no request is queued or running
  virtual int64_t context() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual const EncoderFacts* encoder() const { return nullptr; }  // none: it generates
  virtual const std::vector<int32_t>& end_tokens() const = 0;      // ids that end a sequence, unless ignore_eos

  // From any thread, while requests run. Throw what is wrong with the folder or the name. Requests that have an adapter
  // that is unloaded, or replaced by a folder that could be read, end with it; later ones that name it are refused.
  virtual void load_adapter(const std::string& name, const std::string& folder, bool replace = false);
  virtual void unload_adapter(const std::string& name);
  virtual std::vector<AdapterFacts> adapters() const { return {}; }
};

}  // namespace octet
