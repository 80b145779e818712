// The configuration of a run: one struct, one settings table (docs/config.md is generated from it).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/settings.h"
#include "model/model.h"
#include "passes/pass.h"
#include "precision/policy.h"
#include "train/adapter_settings.h"
#include "train/optimizer.h"
#include "train/preference_settings.h"

namespace octet {

struct RunConfig {
  std::string workload = "language";

  // model: a named size, a Hugging Face folder, or sizes one by one (0 and "" mean: from model.size)
  std::string model_size = "gpt2-124m", model_from, architecture;
  int64_t vocab_size = 0, max_positions = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0,
          intermediate = 0, experts = 0, experts_per_token = 0, expert_intermediate = 0;
  double balance_loss = 0, z_loss = 0;  // of routers
  std::vector<std::string> window;
  double dropout = 0;
  int64_t dropout_bits = 32;
  double rope_theta = 0;
  bool bias = true;

  // data
  std::string train_data, validation_data;  // PREFIX of PREFIX.bin/.idx
  int64_t sequence_length = 1024;
  std::string sampling = "shuffle";            // shuffle | random
  bool separate_documents = false;             // packed: no attention across documents
  int64_t row_sequences = 3, predictions = 0;  // of a row of bert: the most sequences and masked tokens

  AdapterSettings adapter;
  PreferenceSettings dpo;

  // training
  std::string objective = "next_token";  // next_token | dpo
  int64_t steps = 1000;
  double epochs = 0;         // > 0: passes over the training set instead of steps
  int64_t micro_batch = 4;   // sequences, or pairs of dpo, in one forward/backward
  int64_t global_batch = 0;  // sequences in one optimiser step; 0 = micro_batch
  int64_t seed = 1337;
  int64_t max_skipped_steps = 20;  // non-finite gradients in a row before the run stops
  std::string device = "auto";
  bool deterministic = false, eager = false, check_nodes = false;  // on GPUs: CudaOptions
  std::string dropout_masks = "portable";                          // of attention, on GPUs
  int64_t threads = 0;
  OptimizerConfig optimizer;

  // ranks
  int64_t tensor = 1, data_ranks = 1, context = 1;  // one may be 0: what is left
  int64_t pipeline = 1, chunks = 1;
  std::optional<Mesh> chosen_mesh;  // no setting: what choose_mesh() made of them
  bool sequence = false;
  bool overlap = true;
  bool peer_memory = true;
  std::string shard = "none";
  int64_t rank_timeout = 600, restarts = 0;

  // precision and memory
  std::string recipe = "fp8-current";
  int64_t amax_history = 16, margin = 0;
  std::string amax_choice = "max";    // of the history
  std::string transposes = "cached";  // of FP8 weights
  int64_t auto_interval = 100;        // steps between statistics of recipe auto
  PolicySettings policy;
  std::string recompute = "auto";
  std::vector<std::string> disable;
  std::string dump_ir;

  // evaluation, logs, checkpoints
  int64_t eval_interval = 250, eval_tokens = 0;         // 0 = the whole validation set
  int64_t eval_patience = 0;                            // evaluations without a better one before the run ends; 0 = any
  std::vector<std::string> eval_tasks;                  // names or YAML files, evaluated beside the validation set
  std::string eval_tasks_data;                          // folder of built-in tasks' files
  int64_t eval_tasks_limit = 0, eval_tasks_shots = -1;  // documents of each, 0 = all; -1 = as the task says
  double eval_target = 0;                               // of the first metric, at which the run ends; 0 = none
  int64_t log_interval = 10;
  std::string out = "out/run";
  int64_t checkpoint_interval = 500, checkpoint_keep = 2;
  bool checkpoint_best = true;
  std::string checkpoint_content = "all";  // all | weights | weights-bf16
  int64_t shard_bytes = 4'000'000'000;
  std::string profile_timeline;  // "" = none
  int64_t profile_after = 10, profile_steps = 20;
  std::string resume = "auto";  // auto | never | a checkpoint folder

  Mesh mesh() const;  // the chosen one, else the three sizes; throws kInvalidArgument where one is 0
  int64_t accumulation() const { return (global_batch > 0 ? global_batch : micro_batch) / micro_batch; }
};

// Registers every field; the table keeps pointers into `config`, which must outlive it.
SettingsTable settings_of(RunConfig& config);

// The model the run describes: size or folder first, then single fields. Throws naming the fields in conflict.
ModelConfig resolve_model(const RunConfig& config, int64_t data_vocab_size);
Recipe resolve_recipe(const RunConfig& config);
CompileOptions compile_options(const RunConfig& config, const Target& target);
void validate(const RunConfig& config);

}  // namespace octet
