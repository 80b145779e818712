// Activation bytes per layer beside the formulas of arXiv 2205.05198 (equations 1 and 2, table 2; s 2048, table 3).
#include "base/error.h"
#include "train/batches.h"
#include "train/plan_report.h"
#include "train/stepper.h"

namespace octet {
namespace {

struct PaperModel {
  const char* name;
  int64_t micro_batch;
};
constexpr PaperModel kPaperModels[] = {{"gpt3-22b", 4}, {"gpt3-175b", 1}, {"gpt3-530b", 1}, {"gpt3-1t", 1}};
constexpr int64_t kLength = 2048;
constexpr int32_t kInnerLayer = 1;  // of three: its neighbours are layers too

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// One term of the paper's count, in units of sbh bytes, and which of our kept values stand for it.
struct Term {
  const char* name;
  double paper, per_as_over_h;  // the latter times as/h, without recomputation only
  bool (*holds)(const SavedValue& value);
  const char* reason;
};
constexpr auto kNothing = [](const SavedValue&) { return false; };
bool is_matrix(const SavedValue& v) { return v.type.dtype != DType::kF32; }

const Term kTerms[] = {
    {"layer norm inputs", 4, 0, [](const SavedValue& v) { return v.op == "add" && v.name.ends_with(".add"); },
     "the residual stream, twice"},
    {"QKV input", 2, 0,
     [](const SavedValue& v) { return is_matrix(v) && (has(v.name, ".norm1") || has(v.name, "attn.q.x")); },
     "made again from the norm's input under selective; FP8 codes are half"},
    {"Q and K", 4, 0, [](const SavedValue& v) { return has(v.name, "attn.q.add") || has(v.name, "attn.k.add"); }, ""},
    {"V", 2, 0, [](const SavedValue& v) { return has(v.name, "attn.v.add"); }, ""},
    {"softmax, its mask, its dropout", 0, 5, kNothing, "attention never stores the square of the sequence"},
    {"log-sum-exp of attention", 0, 0,
     [](const SavedValue& v) { return v.op == "attention" && v.type.dtype == DType::kF32; },
     "4 bytes a head and token, instead of the row above"},
    {"projection input", 2, 0,
     [](const SavedValue& v) { return is_matrix(v) && (v.op == "attention" || has(v.name, "attn.o.x")); },
     "attention's output, which its own gradient reads too"},
    {"projection dropout mask", 1, 0, kNothing, "drawn again from the counter, never stored"},
    {"MLP input", 2, 0,
     [](const SavedValue& v) { return is_matrix(v) && (has(v.name, ".norm2") || has(v.name, "mlp.up.x")); },
     "as the QKV input"},
    {"GELU input", 8, 0, [](const SavedValue& v) { return has(v.name, "mlp.up.add"); }, ""},
    {"second linear's input", 8, 0,
     [](const SavedValue& v) { return is_matrix(v) && (v.op == "gelu" || has(v.name, "mlp.down.x")); },
     "GELU is made again under selective; FP8 codes are half"},
    {"MLP dropout mask", 1, 0, kNothing, "drawn again from the counter, never stored"},
    {"norm statistics", 0, 0, [](const SavedValue& v) { return has(v.op, "norm") && v.type.dtype == DType::kF32; },
     "8 bytes a token and norm"},
    {"FP8 scales", 0, 0, [](const SavedValue& v) { return v.type.shape.elements() == 1 || v.op == "quantize"; },
     "of a tensor, or of each group of 128"},
};

// What one inner layer keeps: a model of three layers has the same inner layer as one of a hundred.
std::vector<SavedValue> kept_by_layer(ModelConfig model, int64_t micro_batch, Recompute recompute, const Recipe& recipe,
                                      const Target& target) {
  model.layers = 3;
  model.vocab_size = 1024;  // the head is no part of a layer
  model.dropout = 0.1;      // as in the paper
  BatchShape train = batch_shape(micro_batch, kLength, false, true), eval = batch_shape(1, 1, false, false);
  Plan plan =
      compile(training_program(model, train, eval, {}), {.target = target, .recipe = recipe, .recompute = recompute});
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
  double sbh = static_cast<double>(r.s * r.b * r.h),
         as_over_h = static_cast<double>(r.a * r.s) / static_cast<double>(r.h);
  std::vector<double> none = by_term(r.kept_none, sbh), selective = by_term(r.kept_selective, sbh);
  std::string out = fmt::format(
      "\n{}: bytes kept by a layer, in units of sbh (as/h = {:.1f})\n"
      "                                  none: paper     ours   selective: paper   ours\n",
      r.name, as_over_h);
  double sums[4] = {};
  auto row = [&](const char* name, double paper, double paper_selective, double ours, double ours_selective,
                 const char* reason) {
    out += fmt::format("  {:<32} {:>9.4f} {:>8.4f} {:>18.4f} {:>6.4f}  {}\n", name, paper, ours, paper_selective,
                       ours_selective, reason);
    for (double* sum = sums; double value : {paper, ours, paper_selective, ours_selective}) *sum++ += value;
  };
  for (size_t i = 0; i < std::size(kTerms); ++i)
    row(kTerms[i].name, kTerms[i].paper + kTerms[i].per_as_over_h * as_over_h, kTerms[i].paper, none[i], selective[i],
        kTerms[i].reason);
  row("other", 0, 0, none.back(), selective.back(), "");
  out += fmt::format("  {:<32} {:>9.4f} {:>8.4f} {:>18.4f} {:>6.4f}\n", "in all", sums[0], sums[1], sums[2], sums[3]);
  return out;
}

}  // namespace

std::vector<ActivationRow> activation_table(const Recipe& recipe, const Target& target) {
  Target unfused = target;  // the same bytes, under the names of single ops
  unfused.fusions = {};
  std::vector<ActivationRow> rows;
  for (const PaperModel& paper : kPaperModels) {
    ModelConfig model = named_model(paper.name);
    ActivationRow row{.name = paper.name, .s = kLength, .b = paper.micro_batch, .h = model.hidden, .a = model.heads};
    double sbh = static_cast<double>(row.s * row.b * row.h);
    row.paper_none = sbh * (34 + 5.0 * static_cast<double>(row.a * row.s) / static_cast<double>(row.h));
    row.paper_selective = 34 * sbh;
    row.paper_full = 2 * sbh;
    auto kept = [&](Recompute policy, const Target& on) {
      return kept_by_layer(model, paper.micro_batch, policy, recipe, on);
    };
    row.ours_none = sum(kept(Recompute::kNone, target));
    row.ours_light = sum(kept(Recompute::kLight, target));
    row.ours_selective = sum(kept(Recompute::kSelective, target));
    row.ours_full = sum(kept(Recompute::kFull, target));
    row.kept_none = kept(Recompute::kNone, unfused);
    row.kept_selective = kept(Recompute::kSelective, unfused);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string to_text(const std::vector<ActivationRow>& rows, bool explain) {
  std::string out =
      "activation MiB a layer (s 2048)     none: ours    paper  ratio   light: ours   selective: ours   paper  ratio   "
      "full: ours  paper\n";
  auto mib = [](double bytes) { return bytes / (1024.0 * 1024.0); };
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
