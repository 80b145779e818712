#include "infer/engine_settings.h"

#include "precision/recipe.h"

namespace octet {

SettingsTable settings_of(EngineOptions& o, const std::string& task) {
  const bool all = task.empty(), generates = task != "embed", encodes = task != "generate";
  SettingsTable t;
  if (all)
    t.add("task", &o.task,
          {.meaning = "generate or embed: a decoder for embeddings (default: what the model is made for)",
           .choices = {"", "generate", "embed"}});
  if (encodes)
    t.add("pooling", &o.pooling,
          {.meaning = "of embeddings: cls, mean or last (default: as the folder says)",
           .choices = {"", "cls", "mean", "last"}});
  t.add("device", &o.device,
        {.meaning = "device: auto (a GPU if one is usable), cpu or cuda", .choices = {"auto", "cpu", "cuda"}});
  if (generates) {
    t.add("tensor", &o.tensor,
          {.meaning =
               "ranks that share the model, each with a GPU or a part of the cores: threads, or as many processes of a "
               "launcher (torchrun --no-python --nproc-per-node 2 octet ... --tensor 2)",
           .min = 1,
           .max = 64});
    t.add("rank_timeout", &o.rank_timeout,
          {.meaning = "seconds that a step waits for a rank, and of silence after which its process is lost",
           .min = 0.1});
    t.add("build", &o.build,
          {.meaning = "text that must be the same in all processes of the ranks", .by_program = true});
  }
  t.add("recipe", &o.recipe, {.meaning = recipe_help("bf16")});
  if (generates)
    t.add("kv_cache", &o.kv_cache, {.meaning = "f32, bf16, e4m3 or int8 (default: the folder's, or the recipe's)"});
  t.add("tokenizer", &o.tokenizer, {.meaning = "tokenizer file or folder (default: in the model folder)"});
  t.add("needs_tokenizer", &o.needs_tokenizer,
        {.meaning = "off: a model without a tokenizer is served with token ids only", .by_program = true});
  t.add("context", &o.context, {.meaning = "maximum tokens of a sequence (default: the model's)", .min = 2, .off = 0});
  t.add("max_sequences", &o.max_sequences, {.meaning = "sequences in flight", .min = 1});
  t.add("max_step_tokens", &o.max_step_tokens, {.meaning = "tokens of a step", .min = 1});
  if (generates) {
    t.add("block_size", &o.block_size,
          {.meaning = "tokens per block of the KV cache (default: 64 on GPUs, 16 on CPUs)", .min = 0});
    t.add("kv_cache_bytes", &o.kv_cache_bytes,
          {.meaning = "bytes of the KV cache of each rank; 0: what memory_fraction leaves", .min = 0});
    t.add("memory_fraction", &o.memory_fraction, {.meaning = "of the device's free memory", .min = 0.01, .max = 1});
  }
  t.add("max_waiting", &o.max_waiting, {.meaning = "queued sequences; more are refused", .min = 1});
  t.add("max_waiting_tokens", &o.max_waiting_tokens,
        {.meaning = "prompt tokens of queued requests; more are refused", .min = 1});
  if (generates) {
    t.add("policy", enum_target(&o.policy),
          {.meaning = "in-flight batching with preemption or without", .choices = {"never-evict", "max-utilization"}});
    t.add("prefix_cache", &o.prefix_cache, {.meaning = "reuse KV blocks of shared prefixes (default)"});
    t.add(
        "all_rows", &o.all_rows,
        {.meaning = "compute the last layer for every row of a prompt, not only for those that are sampled or scored"});
    t.add("max_adapters", &o.max_adapters,
          {.meaning = "adapters on the device at once, of each class of ranks; 0: those given, at most 64",
           .min = 0,
           .max = 4096});
    t.add("max_adapter_rank", &o.max_adapter_rank,
          {.meaning = "the highest rank of adapters loaded later; 0: of those given, 16 where none is",
           .min = 0,
           .max = 4096});
    t.add("adapter_targets", &o.adapter_targets,
          {.meaning = "linears that adapters may change, as attn.q,attn.v, or all but routers and experts, which are "
                      "named as mlp.experts.up (default: those that the adapters given change, all where none is "
                      "given)"});
    t.add("draft", &o.draft,
          {.meaning = "speculation: ngram guesses tokens from the text so far, a smaller model of the same vocabulary "
                      "writes them; the output is unchanged"});
    t.add("draft_tokens", &o.draft_tokens,
          {.meaning = "the most tokens guessed in a step", .min = 1, .max = kMaxDraftTokens});
    t.add("draft_adaptive", &o.draft_adaptive,
          {.meaning = "fewer guessed, or none, where acceptance and times of steps say so (default)"});
    t.add("draft_memory", &o.draft_memory,
          {.meaning = "share of the free memory for a draft model", .min = 0.01, .max = 0.9});
    t.add("accept_simulated", &o.accept_simulated,
          {.meaning = "accept each draft by this chance, whatever the model says, to measure speed only",
           .min = 0,
           .max = 1,
           .off = -1});
  }
  t.add("random_weights", &o.random_weights, {.meaning = "use random weights, to measure speed only"});
  return t;
}

}  // namespace octet
