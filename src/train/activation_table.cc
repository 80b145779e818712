#include "train/activation_table.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "model/model.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stage_report.h"
#include "train/stepper.h"

namespace octet {
namespace {

struct PaperModel {
  const char* name;
  int64_t micro_batch, batch, pipeline, chunks;  // on eight tensor ranks
};
constexpr PaperModel kPaperModels[] = {
    {"gpt3-22b", 4, 4, 1, 1}, {"gpt3-175b", 1, 64, 8, 3}, {"gpt3-530b", 1, 280, 35, 3}, {"gpt3-1t", 1, 512, 64, 1}};
constexpr int64_t kLength = 2048;
constexpr int32_t kInnerLayer = 1;  // of three: its neighbours are layers too

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// One term of the paper's count, in units of sbh bytes, and which of our kept values stand for it. Tensor parallelism
// splits what lies inside attention and MLP; what lies between them is split with sequence parallelism alone.
struct Term {
  const char* name;
  double paper, per_as_over_h;  // the latter times as/h, without recomputation only
  bool inside;
  bool (*holds)(const SavedValue& value);
  const char* reason;
};
constexpr auto kNothing = [](const SavedValue&) { return false; };
bool is_matrix(const SavedValue& v) { return v.type.dtype != DType::kF32; }

const Term kTerms[] = {
    {"layer norm inputs", 4, 0, false, [](const SavedValue& v) { return v.op == "add" && v.name.ends_with(".add"); },
     "the residual stream, twice"},
    {"QKV input", 2, 0, false,
     [](const SavedValue& v) { return is_matrix(v) && (has(v.name, ".norm1") || has(v.name, "attn.q.x")); },
     "recomputed from the norm's input under selective; FP8 codes are half"},
    {"Q and K", 4, 0, true, [](const SavedValue& v) { return has(v.name, "attn.q.add") || has(v.name, "attn.k.add"); },
     ""},
    {"V", 2, 0, true, [](const SavedValue& v) { return has(v.name, "attn.v.add"); }, ""},
    {"softmax, its mask, its dropout", 0, 5, true, kNothing, "attention never stores the square of the sequence"},
    {"log-sum-exp of attention", 0, 0, true,
     [](const SavedValue& v) { return v.op == "attention" && v.type.dtype == DType::kF32; },
     "4 bytes a head and token, instead of the row above"},
    {"projection input", 2, 0, true,
     [](const SavedValue& v) { return is_matrix(v) && (v.op == "attention" || has(v.name, "attn.o.x")); },
     "attention's output, which its gradient reads too"},
    {"projection dropout mask", 1, 0, false, kNothing, "drawn again from the counter, never stored"},
    {"MLP input", 2, 0, false,
     [](const SavedValue& v) { return is_matrix(v) && (has(v.name, ".norm2") || has(v.name, "mlp.up.x")); },
     "as the QKV input"},
    {"GELU input", 8, 0, true, [](const SavedValue& v) { return has(v.name, "mlp.up.add"); }, ""},
    {"second linear's input", 8, 0, true,
     [](const SavedValue& v) { return is_matrix(v) && (v.op == "gelu" || has(v.name, "mlp.down.x")); },
     "GELU is recomputed under selective; FP8 codes are half"},
    {"MLP dropout mask", 1, 0, false, kNothing, "drawn again from the counter, never stored"},
    {"norm statistics", 0, 0, false,
     [](const SavedValue& v) { return has(v.op, "norm") && v.type.dtype == DType::kF32; }, "8 bytes a token and norm"},
    {"FP8 scales", 0, 0, false, [](const SavedValue& v) { return v.type.shape.elements() == 1 || v.op == "quantize"; },
     "of a tensor, or of each group of 128"},
};

// What one inner layer keeps on a rank: a model of three layers has the same inner layer as one of a hundred.
std::vector<SavedValue> kept_by_layer(ModelConfig model, int64_t micro_batch, const CompileOptions& options) {
  model.layers = 3;
  model.vocab_size = 1024;  // the head is no part of a layer
  model.dropout = 0.1;      // as in the paper
  const BatchShape train = batch_shape(micro_batch, kLength, false, true),
                   eval = batch_shape(1, options.parallel.mesh.ranks(), false, false);
  const Plan plan = compile(
      training_program(loss_graph(GraphRole::kTrain, model, train), loss_graph(GraphRole::kEval, model, eval), {}),
      options);
  std::vector<SavedValue> kept;
  for (const SavedValue& value : saved_for_backward(plan.program.graph("train")))
    if (value.layer == kInnerLayer) kept.push_back(value);
  return kept;
}

int64_t sum(const std::vector<SavedValue>& values) {
  int64_t bytes = 0;
  for (const SavedValue& value : values) bytes += value.bytes;
  return bytes;
}

// Sum of the kept values that the first matching term claims, in units of sbh; the last entry is what no term claims.
std::vector<double> by_term(const std::vector<SavedValue>& kept, double sbh) {
  std::vector<double> units(std::size(kTerms) + 1, 0.0);
  for (const SavedValue& value : kept) {
    size_t term = 0;
    while (term < std::size(kTerms) && !kTerms[term].holds(value)) ++term;
    units[term] += static_cast<double>(value.bytes) / sbh;
  }
  return units;
}

std::string explain_terms(const ActivationRow& r) {
  std::string out = fmt::format(
      "\n{}: bytes kept by a layer, in units of sbh (as/h = {:.1f})\n"
      "                                  none: paper     ours   selective: paper   ours\n",
      r.name, static_cast<double>(r.a * r.s) / static_cast<double>(r.h));
  const auto row = [&](const ActivationTerm& t) {
    out += fmt::format("  {:<32} {:>9.4f} {:>8.4f} {:>18.4f} {:>6.4f}  {}\n", t.name, t.paper_none, t.ours_none,
                       t.paper_selective, t.ours_selective, t.reason);
  };
  ActivationTerm all{.name = "in all"};
  for (const ActivationTerm& t : r.terms) {
    row(t);
    all.paper_none += t.paper_none, all.ours_none += t.ours_none;
    all.paper_selective += t.paper_selective, all.ours_selective += t.ours_selective;
  }
  row(all);
  return out;
}

}  // namespace

std::vector<ActivationRow> activation_table(const Recipe& recipe, const Target& target, const Parallel& parallel) {
  const int64_t t = parallel.mesh[Axis::kTensor];
  check(parallel.mesh.ranks() == t, ErrorCode::kInvalidArgument,
        "the activations of a layer are compared for parallel.tensor and parallel.sequence alone: leave parallel.data "
        "and parallel.context at 1");
  const double tensor = 1.0 / static_cast<double>(t), sequence = parallel.sequence ? tensor : 1.0;
  Target unfused = target;  // the same bytes, under the names of single ops
  unfused.fusions = {};
  std::vector<ActivationRow> rows;
  for (const PaperModel& paper : kPaperModels) {
    const ModelConfig model = named_model(paper.name);
    const auto kept = [&](Recompute policy, const Target& on) {
      return kept_by_layer(model, paper.micro_batch,
                           {.target = on, .parallel = parallel, .recipe = recipe, .recompute = policy});
    };
    ActivationRow row{
        .name = paper.name, .s = kLength, .b = paper.micro_batch, .h = model.hidden, .a = model.heads, .t = t};
    row.ours_none = sum(kept(Recompute::kNone, target));
    row.ours_light = sum(kept(Recompute::kLight, target));
    row.ours_selective = sum(kept(Recompute::kSelective, target));
    row.ours_full = sum(kept(Recompute::kFull, target));
    const std::vector<double> none = by_term(kept(Recompute::kNone, unfused), row.sbh()),
                              selective = by_term(kept(Recompute::kSelective, unfused), row.sbh());
    const double as_over_h = static_cast<double>(row.a * row.s) / static_cast<double>(row.h);
    for (size_t i = 0; i < std::size(kTerms); ++i) {
      const Term& term = kTerms[i];
      const double part = term.inside ? tensor : sequence;
      row.terms.push_back({.name = term.name,
                           .paper_none = part * (term.paper + term.per_as_over_h * as_over_h),
                           .ours_none = none[i],
                           .paper_selective = part * term.paper,
                           .ours_selective = selective[i],
                           .reason = term.reason});
      row.paper_none += row.sbh() * row.terms.back().paper_none;
      row.paper_selective += row.sbh() * row.terms.back().paper_selective;
    }
    row.terms.push_back({.name = "other", .ours_none = none.back(), .ours_selective = selective.back()});
    row.paper_full = 2 * row.sbh() * sequence;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<StageActivationRow> stage_activation_table(const std::string& recipe, const Target& target) {
  std::vector<StageActivationRow> rows;
  for (const PaperModel& paper : kPaperModels) {
    const ModelConfig model = named_model(paper.name);
    RunConfig config;
    config.recipe = recipe, config.recompute = "selective";
    config.sequence_length = kLength, config.micro_batch = paper.micro_batch, config.global_batch = paper.batch;
    config.pipeline = paper.pipeline, config.chunks = paper.chunks;
    config.tensor = 8, config.sequence = true;
    StageActivationRow row{.name = paper.name,
                           .layers = model.layers,
                           .t = config.tensor,
                           .p = paper.pipeline,
                           .v = paper.chunks,
                           .micro_batches = config.accumulation(),
                           .slots = 1};
    PlanReport first;
    if (row.p > 1) {
      const PipelineReport report = plan_stages(LanguageModel(model, config), config, target, /*verify=*/false);
      first = report.stages[0].rank;
      row.slots = std::accumulate(report.stages[0].slots.begin(), report.stages[0].slots.end(), int64_t{0});
    } else {
      first = plan_training(LanguageModel(model, config), config, target);
    }
    row.ours = first.activation_bytes, row.stage_bytes = first.total_bytes;
    const auto real = [](int64_t value) { return static_cast<double>(value); };
    const double sbh = real(kLength * paper.micro_batch * model.hidden) / real(row.t), p = real(row.p);
    const double interleaved = row.v > 1 ? 1 + (p - 1) / (p * real(row.v)) : 1;
    row.paper_layers = 34 * sbh * real(row.layers) * interleaved;
    const double head = row.p == 1 ? 4 * (1 + real(model.vocab_size) / real(model.hidden)) : 0;
    row.paper = row.paper_layers + sbh * (p + head);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string to_text(const std::vector<StageActivationRow>& rows) {
  std::string out =
      "activations of a rank of the first stage, s 2048, sequence parallel, selective recomputation\n"
      "              layers   t   p  v    m  slots    ours, GiB   paper's layers  with both ends  ratio   all of the "
      "rank, "
      "GiB\n";
  const auto gib = [](double bytes) { return bytes / (1024.0 * 1024.0 * 1024.0); };
  for (const StageActivationRow& r : rows)
    out += fmt::format("{:<12}  {:>6} {:>3} {:>3} {:>2} {:>4} {:>6} {:>12.3f} {:>16.3f} {:>15.3f}  {:.3f} {:>22.2f}\n",
                       r.name, r.layers, r.t, r.p, r.v, r.micro_batches, r.slots, gib(static_cast<double>(r.ours)),
                       gib(r.paper_layers), gib(r.paper), static_cast<double>(r.ours) / r.paper,
                       gib(static_cast<double>(r.stage_bytes)));
  return out;
}

std::string to_text(const std::vector<ActivationRow>& rows, bool explain) {
  const int64_t t = rows.front().t;
  std::string out = t > 1 ? fmt::format("of a rank of parallel.tensor={}\n", t) : "";
  out +=
      "activation MiB a layer (s 2048)     none: ours    paper  ratio   light: ours   selective: ours   paper  ratio   "
      "full: ours  paper\n";
  const auto mib = [](double bytes) { return bytes / (1024.0 * 1024.0); };
  for (const ActivationRow& r : rows)
    out += fmt::format(
        "{:<12} h {:<6} a {:<4} b {:<2}   {:>10.1f} {:>8.1f}  {:.3f}   {:>11.1f}   {:>15.1f} {:>7.1f}  {:.3f}   "
        "{:>10.1f} {:>6.1f}\n",
        r.name, r.h, r.a, r.b, mib(static_cast<double>(r.ours_none)), mib(r.paper_none),
        static_cast<double>(r.ours_none) / r.paper_none, mib(static_cast<double>(r.ours_light)),
        mib(static_cast<double>(r.ours_selective)), mib(r.paper_selective),
        static_cast<double>(r.ours_selective) / r.paper_selective, mib(static_cast<double>(r.ours_full)),
        mib(r.paper_full));
  if (explain)
    for (const ActivationRow& r : rows) out += explain_terms(r);
  return out;
}

}  // namespace octet
