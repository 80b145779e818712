// The engine that generates: its thread (infer/engine_thread.h) drives scheduler, runner and postprocess, which are
// independent of each other. A step is: schedule, launch; deliver the text of the previous step; wait for the step in
// flight, commit; sample the new one. So the device always has the next forward queued when results arrive, and slow
// host work (detokenization, waking readers) overlaps with it. With drafts (infer/speculation.h) the step in flight is
// collected first, for the next one is guessed from its tokens, and with beams, for these choose whose blocks go on;
// text is delivered while the device computes, as ever.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "infer/adapter_store.h"
#include "infer/block_manager.h"
#include "infer/engine_thread.h"
#include "infer/forward_builder.h"
#include "infer/runner.h"
#include "infer/sample_builder.h"
#include "infer/scheduler.h"
#include "infer/speculation.h"

namespace octet {

// Maps the text of GenerationRequest::cache_salt to the number that keys cached blocks. Numbers are unique, not hashes:
// tenants whose hashes collide would share cached content. The table is bounded: an evicted salt gets a new number and
// no longer finds its blocks in the cache.
class TenantSalts {
 public:
  explicit TenantSalts(size_t max_bytes = size_t{16} << 20) : max_bytes_(max_bytes) {}

  // 0 for an empty salt, else a number that is never reused for another salt.
  uint64_t number_of(const std::string& text) {
    if (text.empty()) return 0;
    if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
    const size_t cost = text.size() + kEntryBytes;
    if (bytes_ + cost > max_bytes_) {
      numbers_.clear();
      bytes_ = 0;
    }
    bytes_ += cost;
    return numbers_[text] = ++last_;
  }
  size_t remembered() const { return numbers_.size(); }

 private:
  static constexpr size_t kEntryBytes = 96;  // without the text, about
  size_t max_bytes_, bytes_ = 0;
  uint64_t last_ = 0;
  std::unordered_map<std::string, uint64_t> numbers_;
};

struct EngineParts {
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Tokenizer> tokenizer = {};  // null: requests must give ids
  std::vector<int32_t> eos_ids = {};
  std::unique_ptr<Drafter> drafter = {};        // null: no speculation
  std::unique_ptr<AdapterStore> adapters = {};  // null: none can be loaded
};

class EngineLoop final : public EngineThread {
 public:
  // Throws kInvalidArgument for options beyond the runner's limits.
  EngineLoop(EngineParts parts, const EngineOptions& options);
  ~EngineLoop() override;

  int64_t context() const override { return model_.context; }
  int64_t vocab_size() const override { return model_.vocab; }
  const std::vector<int32_t>& end_tokens() const override { return model_.eos_ids; }
  void load_adapter(const std::string& name, const std::string& folder, bool replace) override;
  void load_adapter(const std::string& name, const AdapterSpec& spec, const AdapterTensors& tensors,
                    bool replace = false);
  void unload_adapter(const std::string& name) override { store().unload(name); }
  std::vector<AdapterFacts> adapters() const override {
    return parts_.adapters ? parts_.adapters->list() : std::vector<AdapterFacts>();
  }

 private:
  struct InFlightStep {
    int64_t step = 0;  // 0: none
    std::vector<SampleBuilder::Row> rows;
    int64_t tokens = 0;  // of decodes and drafts; 0 where the step has prompts
    bool drafts = false, beams = false;
  };
  struct SlotUser {
    SequenceId id = -1;
    RequestSequence* sequence = nullptr;
  };

  std::unique_ptr<Request> read(GenerationRequest asked) const override { return prepare(std::move(asked), model_); }
  void admit(Request& request) override;
  void leave(RequestSequence& sequence) override { scheduler_.cancel(sequence.id); }
  void step() override;
  void check_alive() override { parts_.runner->check_alive(); }
  AdapterStore& store() const;
  void write_adapter(const ScheduledSequence& entry, const HostAdapter& adapter);
  void launch(const StepPlan& plan, double time);
  RequestSequence& sequence_of(const ScheduledSequence& entry);
  bool first_step(RequestSequence& sequence, const ScheduledSequence& entry, double time);
  void handle_finished();
  void collect(bool ahead);
  size_t collect_text(const SampleOutput& output, size_t row);
  size_t collect_beams(const SampleOutput& output, size_t row);
  void sample();
  void count_step(double seconds);

  EngineParts parts_;
  ServedModel model_;

  // Used by the engine's thread only:
  BlockManager blocks_;
  AdapterSlots adapter_slots_;
  Scheduler scheduler_;
  ForwardBuilder forward_builder_;
  SampleBuilder sample_builder_;
  Speculation speculation_;
  std::unordered_map<SequenceId, RequestSequence*> sequences_;  // not yet reported as ended by the scheduler
  std::vector<SlotUser> slots_;
  TenantSalts salts_;
  std::vector<uint64_t> written_;     // by slot: the adapter whose bytes it holds
  InFlightStep planned_, in_flight_;  // forward launched; forward and sampling launched
  std::vector<SampleBuilder::Failure> failed_;
  std::vector<Speculation::Candidate> candidates_;  // of drafts: sequences of the step collected last
  std::vector<SampledToken> sampled_;
  bool was_ahead_ = false;  // the step collected last was collected behind the next one's forward
  double runner_seconds_ = 0, wait_seconds_ = 0;
};

}  // namespace octet
