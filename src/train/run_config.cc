#include "train/run_config.h"

#include <fmt/ranges.h>

#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "ir/dropout_bits.h"
#include "passes/pipeline_schedule.h"
#include "train/schedule.h"
#include "train/workload.h"
#include "weights/weights.h"

namespace octet {

SettingsTable settings_of(RunConfig& c) {
  SettingsTable t;
  std::vector<std::string> families = architectures();
  families.insert(families.begin(), "");
  t.add("workload", &c.workload,
        {.meaning =
             "what is learnt: language: the next token; bert: masked tokens and next sentences; classify: labels of "
             "texts. Other defaults: `octet config WORKLOAD`",
         .choices = workload_names()});
  t.add("model.size", &c.model_size, {.meaning = "a named size, see `octet plan --list-models`"});
  t.add("model.from", &c.model_from,
        {.meaning = "start from the weights and sizes of this Hugging Face folder, or of a run folder's newest sound "
                    "checkpoint; its tokenizer must be the data's"});
  t.add("model.architecture", &c.architecture,
        {.meaning = "family, when sizes are given one by one", .choices = families});
  t.add("model.vocab_size", &c.vocab_size, {.meaning = "0 = the size's, or the data's tokenizer if larger", .min = 0});
  t.add("model.max_positions", &c.max_positions,
        {.meaning = "longest sequence the model knows; 0 = the size's, or data.sequence_length if longer (not for "
                    "learned positions of model.from)",
         .min = 0});
  t.add("model.hidden", &c.hidden, {.meaning = "width of the residual stream; 0 = the size's", .min = 0});
  t.add("model.layers", &c.layers, {.meaning = "0 = the size's", .min = 0});
  t.add("model.heads", &c.heads, {.meaning = "attention heads; 0 = the size's", .min = 0});
  t.add("model.kv_heads", &c.kv_heads, {.meaning = "key/value heads; 0 = the size's", .min = 0});
  t.add("model.head_dim", &c.head_dim, {.meaning = "0 = hidden / heads", .min = 0});
  t.add("model.intermediate", &c.intermediate, {.meaning = "MLP width; 0 = the size's", .min = 0});
  t.add("model.experts", &c.experts, {.meaning = "experts of a mixture (mixtral, ...); 0 = the size's", .min = 0});
  t.add("model.experts_per_token", &c.experts_per_token, {.meaning = "of them a token; 0 = the size's", .min = 0});
  t.add("model.expert_intermediate", &c.expert_intermediate, {.meaning = "MLP width of one; 0 = the size's", .min = 0});
  t.add("model.balance_loss", &c.balance_loss,
        {.meaning = "coefficient of the load-balancing loss of routers, added in training", .min = 0});
  t.add("model.z_loss", &c.z_loss, {.meaning = "coefficient of the routers' z-loss, added in training", .min = 0});
  t.add("model.window", &c.window,
        {.meaning =
             "tokens a query sees, itself included (0 = all), of the layers in turn: 4096,0 alternates windowed and "
             "full attention (qwen2, qwen3; mistral has one for all); empty = the size's"});
  t.add("model.dropout", &c.dropout, {.meaning = "embedding, attention and residual dropout", .min = 0, .max = 0.999});
  t.add("model.dropout_bits", &c.dropout_bits,
        {.meaning = "random bits of an element of dropout: 8 are fewer draws, with p rounded to a multiple of 1/256 "
                    "(other masks than 32; 0.1 becomes 26/256)",
         .min = 8,
         .max = 32});
  t.add("model.bias", &c.bias, {.meaning = "biases in linears and layer norms (gpt2)"});
  t.add("model.rope_theta", &c.rope_theta, {.meaning = "rotary base; 0 = the size's", .min = 0});

  t.add("data.train", &c.train_data, {.meaning = "PREFIX of the training PREFIX.bin/.idx (made by `octet data`)"});
  t.add("data.validation", &c.validation_data, {.meaning = "PREFIX of the validation set; empty = no evaluation"});
  t.add("data.sequence_length", &c.sequence_length,
        {.meaning = "tokens in a training sequence", .min = 1, .max = 1 << 24});
  t.add("data.sampling", &c.sampling,
        {.meaning = "shuffle: every sequence once an epoch in random order; random: uniform random offsets",
         .choices = {"shuffle", "random"}});
  t.add("data.separate_documents", &c.separate_documents, {.meaning = "no attention across document boundaries"});

  t.add("data.row_sequences", &c.row_sequences,
        {.meaning = "bert: sequences packed into a row of data.sequence_length tokens, at most", .min = 1, .max = 3});
  t.add("data.predictions", &c.predictions,
        {.meaning =
             "bert: masked tokens of a row, at most; 0 = 15 % of its tokens and two, rounded up to a multiple of 8",
         .min = 0,
         .max = 1 << 20});

  add_settings(t, c.adapter);

  t.add("train.objective", &c.objective,
        {.meaning =
             "next_token; dpo: the answers of pairs made by `octet data --pairs`, chosen and rejected, as dpo.* say",
         .choices = {"next_token", "dpo"}});
  add_settings(t, c.dpo);

  t.add("train.steps", &c.steps, {.meaning = "optimiser steps", .min = 1});
  t.add(
      "train.epochs", &c.epochs,
      {.meaning = "passes over the training set, in place of train.steps (rounded up to whole steps); 0 = train.steps",
       .min = 0,
       .max = 1e6});
  t.add("train.micro_batch", &c.micro_batch,
        {.meaning = "sequences in one forward and backward; of bert rows of them, of train.objective=dpo pairs",
         .min = 1});
  t.add("train.global_batch", &c.global_batch,
        {.meaning = "sequences in one optimiser step, a multiple of micro_batch; 0 = micro_batch",
         .min = 0,
         .max = 1 << 20});
  t.add("train.seed", &c.seed, {.meaning = "of initial weights, data order and dropout", .min = 0});
  t.add("train.max_skipped_steps", &c.max_skipped_steps,
        {.meaning = "steps in a row with non-finite gradients before the run stops", .min = 1});
  t.add("train.device", &c.device, {.meaning = "where to run", .choices = {"auto", "cpu", "cuda"}});
  t.add("train.deterministic", &c.deterministic,
        {.meaning = "GPUs: the same bits in every run (attention's gradient adds in order; CPUs always do)"});
  t.add(
      "train.dropout_masks", &c.dropout_masks,
      {.meaning = "attention's dropout on GPUs: portable draws what every device draws; library takes cuDNN's masks in "
                  "bf16, 2.5 times as fast, but queries t, t + 2, t + 4, t + 6 of every 8 drop the same keys",
       .choices = {"portable", "library"}});
  t.add("train.eager", &c.eager,
        {.meaning = "GPUs: launch every node instead of replaying CUDA graphs; the same bits"});
  t.add("train.check_nodes", &c.check_nodes,
        {.meaning = "GPUs: launch and wait node by node, so that a device's error names its node; slow"});
  t.add("train.threads", &c.threads, {.meaning = "CPU threads; 0 = all cores", .min = 0, .max = 4096});

  t.add("optimizer.name", &c.optimizer.name,
        {.meaning =
             "adamw; sgd (as torch.optim.SGD, dampening 0); lamb; lars (sgd whose rate, inside the momentum, takes a "
             "trust ratio)",
         .choices = optimizer_names()});
  t.add("optimizer.lr", &c.optimizer.lr, {.meaning = "peak learning rate", .min = 0});
  t.add(
      "optimizer.schedule", &c.optimizer.schedule,
      {.meaning = "of the rate after the warm-up: cosine, linear or polynomial down to min_lr; constant; steps: times "
                  "decay_factor at each step of decay_at; exponential: times decay_factor every decay_every steps",
       .choices = schedule_names()});
  t.add("optimizer.min_lr", &c.optimizer.min_lr,
        {.meaning = "the least rate of a decay; -1 = 6e-5, at most optimizer.lr, for the cosine, else 0",
         .min = kDefaultMinLr});
  t.add("optimizer.warmup_steps", &c.optimizer.warmup_steps, {.meaning = "linear warm-up", .min = 0});
  t.add("optimizer.warmup_from", &c.optimizer.warmup_from,
        {.meaning = "the step, counted from 0, where the line of the warm-up is 0: -1 makes the first step's rate lr / "
                    "(warmup_steps + 1)",
         .max = -1});
  t.add(
      "optimizer.decay_from", &c.optimizer.decay_from,
      {.meaning = "step where the decay begins, before or behind the end of the warm-up (until both, the rate is lr); "
                  "-1 = the end of the warm-up",
       .min = kWarmupEnd});
  t.add("optimizer.decay_steps", &c.optimizer.decay_steps,
        {.meaning = "step where cosine, linear and polynomial reach min_lr; 0 = train.steps", .min = 0});
  t.add("optimizer.decay_power", &c.optimizer.decay_power, {.meaning = "polynomial", .min = 0});
  t.add("optimizer.decay_factor", &c.optimizer.decay_factor,
        {.meaning = "steps, exponential: what a decay multiplies the rate with", .min = 0, .max = 1});
  t.add("optimizer.decay_at", &c.optimizer.decay_at, {.meaning = "steps: where the rate decays, as in 3000,6000"});
  t.add("optimizer.decay_every", &c.optimizer.decay_every,
        {.meaning = "exponential: steps between decays, the first so many after decay_from; 0 = those of an epoch",
         .min = 0});
  t.add("optimizer.beta1", &c.optimizer.beta1, {.meaning = "adamw, lamb", .min = 0, .max = 0.999999});
  t.add("optimizer.beta2", &c.optimizer.beta2, {.meaning = "adamw, lamb", .min = 0, .max = 0.999999});
  t.add("optimizer.eps", &c.optimizer.eps,
        {.meaning = "adamw, lamb (whose usual value is 1e-6); lars: added below the ratio", .min = 0});
  t.add("optimizer.momentum", &c.optimizer.momentum,
        {.meaning = "sgd, lars; 0 = none, and no memory for it", .min = 0, .max = 0.999999});
  t.add("optimizer.nesterov", &c.optimizer.nesterov, {.meaning = "sgd, lars: Nesterov momentum"});
  t.add("optimizer.weight_decay", &c.optimizer.weight_decay,
        {.meaning = "on parameters of rank >= 2 (not on norms and biases); decoupled, for sgd and lars added to the "
                    "gradient",
         .min = 0});
  t.add("optimizer.no_decay", &c.optimizer.no_decay,
        {.meaning = "parameters without weight decay, besides those of rank 1: names, or patterns such as embed.*"});
  t.add("optimizer.no_trust", &c.optimizer.no_trust,
        {.meaning = "lamb, lars: parameters whose rate takes no trust ratio: names, or patterns; empty = those without "
                    "weight decay; none = every rate takes it"});
  t.add("optimizer.trust_coefficient", &c.optimizer.trust_coefficient,
        {.meaning = "lars: what the trust ratio |p| / (|g| + weight_decay |p| + eps) is multiplied with", .min = 1e-9});
  t.add("optimizer.sparse", &c.optimizer.sparse,
        {.meaning = "adamw, sgd, on CPUs: embedding tables (names, or patterns such as embed.*) whose gradient is the "
                    "rows that a step looks up: only these rows and their moments change. Not tables that the output "
                    "head shares"});
  t.add("optimizer.lr_factors", &c.optimizer.lr_factors,
        {.meaning = "PATTERN=FACTOR: the learning rate of parameters whose names match is multiplied; the first match "
                    "counts"});
  t.add("optimizer.clip", &c.optimizer.clip, {.meaning = "largest global gradient norm; 0 = off", .min = 0});

  t.add("parallel.tensor", &c.tensor,
        {.meaning = "ranks that share every layer's heads, columns and vocabulary; 0 (of one axis) = what is left of a "
                    "launcher's ranks, or of the GPUs",
         .min = 0,
         .max = 1024});
  t.add(
      "parallel.data", &c.data_ranks,
      {.meaning = "ranks that run micro-batches of their own; train.global_batch is dealt out among them; 0 = as many "
                  "as are left and divide its micro-batches",
       .min = 0,
       .max = 1 << 16});
  t.add("parallel.context", &c.context,
        {.meaning = "ranks that share the tokens of a micro-batch, and its heads in attention; 0 as of parallel.tensor",
         .min = 0,
         .max = 1024});
  t.add(
      "parallel.pipeline", &c.pipeline,
      {.meaning = "stages that have layers of their own; micro-batches of a step pass through them one after the other",
       .min = 1,
       .max = 1024});
  t.add("parallel.chunks", &c.chunks,
        {.meaning = "runs of layers of a stage of parallel.pipeline: from 2 on 1F1B is interleaved, with a shorter "
                    "bubble and more transfers",
         .min = 1,
         .max = 1024});
  t.add("parallel.sequence", &c.sequence,
        {.meaning = "the ranks of parallel.tensor also share the tokens between products (norms, residuals, dropout)"});
  t.add(
      "parallel.overlap", &c.overlap,
      {.meaning = "exchanges between GPUs run beside kernels where these do not wait for them; off: in turn, with the "
                  "same bits"});
  t.add("parallel.peer_memory", &c.peer_memory,
        {.meaning = "GPUs of one machine read and write each other's memory where they can; off: NCCL alone, with the "
                    "same bits between two ranks"});
  t.add("parallel.shard", &c.shard,
        {.meaning = "what the ranks of parallel.data and parallel.context share: none; optimizer: masters and moments "
                    "(ZeRO-1); gradients too (ZeRO-2); parameters too (ZeRO-3)",
         .choices = {"none", "optimizer", "gradients", "parameters"}});
  t.add("parallel.timeout", &c.rank_timeout,
        {.meaning = "seconds that a rank waits for another before the run ends", .min = 1});
  t.add("parallel.restarts", &c.restarts,
        {.meaning = "how often a run without a launcher is started again after it has failed, from the newest sound "
                    "checkpoint; above 0, under a launcher too, it makes do with fewer ranks of parallel.data",
         .min = 0,
         .max = 1000});

  t.add("precision.recipe", &c.recipe,
        {.meaning = "types of the model's arithmetic", .choices = recipe_names(/*training=*/true)});
  t.add("precision.amax_history", &c.amax_history,
        {.meaning = "steps of amax history (fp8-delayed)", .min = 1, .max = 65536});
  t.add("precision.amax_choice", &c.amax_choice,
        {.meaning = "of that history the scale is made from (fp8-delayed)", .choices = {"max", "most-recent"}});
  t.add("precision.margin", &c.margin, {.meaning = "scales are divided by 2^margin", .min = 0, .max = 16});
  t.add("precision.transposes", &c.transposes,
        {.meaning = "transposed FP8 weights for backward: kept, or made again for every product (a byte a weight less)",
         .choices = {"cached", "on-demand"}});
  t.add("auto.interval", &c.auto_interval,
        {.meaning = "steps between statistics and decisions (recipe auto), the first after step 1", .min = 1});
  t.add("auto.dwell", &c.policy.dwell,
        {.meaning = "rounds of statistics a cheaper precision must have held before a GEMM goes back to it", .min = 1});
  t.add("auto.min_snr_db", &c.policy.leave_db,
        {.meaning = "a GEMM leaves a precision that holds an operand with a lower signal-to-noise ratio", .min = 0});
  t.add("auto.return_snr_db", &c.policy.return_db, {.meaning = "and goes back to it from this ratio on", .min = 0});
  t.add("auto.max_underflow", &c.policy.leave_underflow,
        {.meaning = "or that makes a larger share of an operand's non-zero values zero", .min = 0, .max = 1});
  t.add("auto.return_underflow", &c.policy.return_underflow,
        {.meaning = "and goes back to it up to this share", .min = 0, .max = 1});
  t.add("recompute", &c.recompute,
        {.meaning = "what backward makes again instead of keeping; auto: light on GPUs, none on CPUs",
         .choices = {"auto", "none", "light", "selective", "full"}});
  t.add("disable", &c.disable, {.meaning = "passes, or steps of passes, to leave out, by name"});
  t.add("dump_ir", &c.dump_ir, {.meaning = "write the graphs after every pass into this folder"});

  t.add("eval.interval", &c.eval_interval, {.meaning = "steps between evaluations; 0 = only at the end", .min = 0});
  t.add("eval.tokens", &c.eval_tokens, {.meaning = "tokens of one evaluation; 0 = the whole validation set", .min = 0});
  t.add("eval.patience", &c.eval_patience,
        {.meaning = "end the run after so many evaluations in a row without a better validation loss; 0 = never",
         .min = 0,
         .max = 1 << 20});
  t.add("eval.tasks", &c.eval_tasks,
        {.meaning = "tasks of log-likelihoods, by name or YAML file, evaluated as octet eval --tasks does; "
                    "docs/evaluation.md"});
  t.add("eval.tasks_data", &c.eval_tasks_data, {.meaning = "folder of the files that built-in tasks read"});
  t.add("eval.tasks_limit", &c.eval_tasks_limit, {.meaning = "documents of each task; 0 = all", .min = 0});
  t.add("eval.tasks_shots", &c.eval_tasks_shots,
        {.meaning = "examples in each prompt; -1 = as the task says", .min = -1, .max = 1000});
  t.add("eval.target", &c.eval_target,
        {.meaning = "end the run at the first evaluation whose first metric (of language the loss, of bert "
                    "masked_accuracy, of classify accuracy) is as good as this; 0 = never",
         .min = 0});
  t.add("log.interval", &c.log_interval, {.meaning = "steps between log lines and events", .min = 1});
  t.add("out", &c.out, {.meaning = "folder of checkpoints, logs and events"});
  t.add("checkpoint.interval", &c.checkpoint_interval,
        {.meaning = "steps between checkpoints; 0 = only at the end", .min = 0});
  t.add("checkpoint.keep", &c.checkpoint_keep,
        {.meaning = "how many of the last are kept (the best is kept besides)", .min = 1, .max = 1 << 20});
  t.add("checkpoint.best", &c.checkpoint_best,
        {.meaning = "also write one whenever the validation loss is the lowest so far"});
  t.add(
      "checkpoint.content", &c.checkpoint_content,
      {.meaning =
           "all: what the run goes on from, 12 bytes a parameter with adamw; weights: a Hugging Face folder alone, in "
           "float32 (4 bytes) or bf16 (2): no run goes on from it, model.from starts from it",
       .choices = {"all", "weights", "weights-bf16"}});
  t.add("checkpoint.shard_bytes", &c.shard_bytes,
        {.meaning = "largest safetensors file of a checkpoint", .min = 1 << 20});
  t.add(
      "profile.timeline", &c.profile_timeline,
      {.meaning = "GPUs: write what the GPU did over some steps to this trace file (Chrome's format), and log how long "
                  "it was idle within and between them; needs CUPTI"});
  t.add("profile.after", &c.profile_after, {.meaning = "steps before the timeline begins", .min = 2});
  t.add("profile.steps", &c.profile_steps, {.meaning = "steps of the timeline", .min = 1, .max = 10000});
  t.add(
      "resume", &c.resume,
      {.meaning = "auto: the newest sound checkpoint in `out`, an error where there are some and none is sound; never; "
                  "or a checkpoint folder. Later ones of `out` are moved to out/set_aside_N"});
  return t;
}

namespace {

// Before training rather than at its first checkpoint: the family's config.json can say these sizes.
void check_storable(const ModelConfig& m) {
  ModelConfig back = parse_hugging_face_config(to_hugging_face_config(m, {}, "float32"), "config.json");
  auto same = [&](const char* field, const auto& wanted, const auto& stored) {
    check(wanted == stored, ErrorCode::kUnsupported, "model.{}: checkpoints of family {} cannot hold {}, only {}",
          field, m.architecture, wanted, stored);
  };
  same("kv_heads", m.kv_head_count(), back.kv_head_count());
  same("head_dim", m.head_size(), back.head_size());
  same("intermediate", m.intermediate_size(), back.intermediate_size());
  same("experts", m.experts.count, back.experts.count);
  same("experts_per_token", m.experts.per_token, back.experts.per_token);
  const auto of_expert = [](const ModelConfig& c) { return ModelSpec(c).pattern[0].mixer.experts.intermediate; };
  same("expert_intermediate", of_expert(m), of_expert(back));
  same("window", fmt::format("{}", fmt::join(m.layer_windows(), ",")),
       fmt::format("{}", fmt::join(back.layer_windows(), ",")));
}

int64_t parse_window(const std::string& text) {
  int64_t window = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), window);
  check(error == std::errc() && end == text.data() + text.size(), ErrorCode::kInvalidArgument,
        "model.window: '{}' (want whole numbers, such as 4096,0)", text);
  return window;
}

}  // namespace

ModelConfig resolve_model(const RunConfig& c, int64_t data_vocab_size) {
  ModelConfig m = c.model_from.empty() ? named_model(c.model_size) : read_model_config(c.model_from);
  const int64_t learned = c.model_from.empty() ? 0 : m.length_limit();  // rows of the folder's table
  if (!c.architecture.empty() && c.architecture != m.architecture) {
    check(c.model_from.empty(), ErrorCode::kInvalidArgument, "model.architecture {} contradicts the folder {} ({})",
          c.architecture, c.model_from, m.architecture);
    ModelConfig sizes = m;
    m = model_family(c.architecture);
    m.vocab_size = sizes.vocab_size, m.max_positions = sizes.max_positions;
    m.hidden = sizes.hidden, m.layers = sizes.layers, m.heads = sizes.heads;
    m.head_dim = sizes.head_dim, m.intermediate = sizes.intermediate;
    if (sizes.kv_heads > 0) m.kv_heads = sizes.kv_heads;
  }
  auto override_with = [](int64_t& field, int64_t value) {
    if (value > 0) field = value;
  };
  bool new_width = c.hidden > 0 && c.hidden != m.hidden;
  if (new_width && c.heads == 0 && m.head_dim == 0) {
    check(c.hidden % m.heads == 0, ErrorCode::kInvalidArgument,
          "model.hidden {} is not a multiple of {} heads: set model.heads", c.hidden, m.heads);
  }
  if (new_width && c.intermediate == 0 && m.intermediate > 0)  // keep the size's ratio, rounded up to 64
    m.intermediate = (m.intermediate * c.hidden / m.hidden + 63) / 64 * 64;
  override_with(m.hidden, c.hidden);
  override_with(m.layers, c.layers);
  override_with(m.heads, c.heads);
  if (c.heads > 0 && c.kv_heads == 0 && m.kv_heads > c.heads) m.kv_heads = c.heads;
  override_with(m.kv_heads, c.kv_heads);
  override_with(m.head_dim, c.head_dim);
  override_with(m.intermediate, c.intermediate);
  override_with(m.max_positions, c.max_positions);
  check(m.experts.count > 0 || (c.experts == 0 && c.experts_per_token == 0 && c.expert_intermediate == 0 &&
                                c.balance_loss == 0 && c.z_loss == 0),
        ErrorCode::kInvalidArgument,
        "model.experts and related settings: family {} has no experts; choose mixtral or another family of mixtures",
        m.architecture);
  override_with(m.experts.count, c.experts);
  override_with(m.experts.per_token, c.experts_per_token);
  override_with(m.experts.intermediate, c.expert_intermediate);
  m.experts.balance_loss = c.balance_loss, m.experts.z_loss = c.z_loss;
  if (!c.window.empty()) m.window.clear();
  for (const std::string& window : c.window) m.window.push_back(parse_window(window));
  if (c.vocab_size > 0) {
    m.vocab_size = c.vocab_size;
  } else if (data_vocab_size > 0 && c.model_from.empty()) {
    m.vocab_size = data_vocab_size;
  }
  check(data_vocab_size <= m.vocab_size, ErrorCode::kInvalidArgument,
        "the data's tokenizer has {} tokens, the model's vocabulary {}: leave model.vocab_size at 0 or raise it",
        data_vocab_size, m.vocab_size);
  check(
      learned == 0 || std::max(c.sequence_length, c.max_positions) <= learned, ErrorCode::kInvalidArgument,
      "model.from {} has embeddings of {} positions, data.sequence_length {} and model.max_positions {} ask for more: "
      "leave model.max_positions at 0 and set data.sequence_length to at most {}",
      c.model_from, learned, c.sequence_length, c.max_positions, learned);
  if (c.max_positions == 0 && m.max_positions < c.sequence_length) m.max_positions = c.sequence_length;
  check(c.max_positions == 0 || c.sequence_length <= c.max_positions, ErrorCode::kInvalidArgument,
        "data.sequence_length {} exceeds model.max_positions {}, the longest sequence that the trained model could be "
        "served with: lower the former or raise the latter",
        c.sequence_length, c.max_positions);
  if (c.rope_theta > 0) m.rope.theta = c.rope_theta;
  const std::string fault = dropout_bits_fault(c.dropout, c.dropout_bits);
  check(fault.empty(), ErrorCode::kInvalidArgument, "model.dropout_bits: {}", fault);
  check(c.dropout_bits != 8 || c.dropout_masks == "portable", ErrorCode::kInvalidArgument,
        "model.dropout_bits is 8 and train.dropout_masks {}: masks of a library have bits of their own; leave one at "
        "its default",
        c.dropout_masks);
  m.dropout = c.dropout, m.dropout_bits = c.dropout_bits;
  if (m.architecture == "gpt2") m.bias = Biases::all(c.bias);
  validate(m);
  check_storable(m);
  return m;
}

Recipe resolve_recipe(const RunConfig& c) {
  // Weights in NF4 are multiplied in bf16, and what adapters add is too small for FP8 to be worth it.
  const bool bf16 = c.adapter.base == "nf4" && parse_recipe(c.recipe).scaling != Scaling::kNone;
  Recipe recipe = parse_recipe(bf16 ? "bf16" : c.recipe);
  recipe.amax_history_length = c.amax_history;
  recipe.history_max = c.amax_choice == "max";
  recipe.margin = c.margin;
  recipe.keep_transposes = c.transposes == "cached";
  return recipe;
}

Mesh RunConfig::mesh() const {
  if (chosen_mesh) return *chosen_mesh;
  check(tensor > 0 && data_ranks > 0 && context > 0, ErrorCode::kInvalidArgument,
        "parallel.{}=0 takes what is left of a launcher's ranks or of the usable GPUs, and here there are neither (a "
        "plan, or CPU ranks without a launcher): set it to a number",
        tensor == 0       ? "tensor"
        : data_ranks == 0 ? "data"
                          : "context");
  Mesh mesh;
  mesh[Axis::kPipeline] = static_cast<int32_t>(pipeline);
  mesh[Axis::kData] = static_cast<int32_t>(data_ranks);
  mesh[Axis::kContext] = static_cast<int32_t>(context);
  mesh[Axis::kTensor] = static_cast<int32_t>(tensor);
  return mesh;
}

CompileOptions compile_options(const RunConfig& c, const Target& target) {
  return {.target = target,
          .parallel = {.mesh = c.mesh(),
                       .sequence = c.sequence,
                       .overlap = c.overlap,
                       .level = parse_shard_level(c.shard),
                       .chunks = static_cast<int32_t>(c.chunks),
                       .micro_batches = static_cast<int32_t>(c.accumulation() / c.mesh()[Axis::kData])},
          .recipe = resolve_recipe(c),
          .recompute = parse_recompute(c.recompute, target),
          .disabled = {c.disable.begin(), c.disable.end()},
          .dump_dir = c.dump_ir};
}

}  // namespace octet
