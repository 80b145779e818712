// Activation bytes per layer beside the formulas of arXiv 2205.05198 (equations 1 and 2, table 2; s 2048, table 3).
#include "base/error.h"
#include "train/batches.h"
#include "train/plan_report.h"
#include "train/training_program.h"

namespace octet {
namespace {

struct PaperModel {
  const char* name;
  int64_t micro_batch;
};
constexpr PaperModel kPaperModels[] = {{"gpt3-22b", 4}, {"gpt3-175b", 1}, {"gpt3-530b", 1}, {"gpt3-1t", 1}};
constexpr int64_t kLength = 2048;
constexpr int32_t kInnerLayer = 1;  // of three: its neighbours are layers too

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

}  // namespace

std::vector<ActivationRow> activation_table(const Recipe& recipe, const Target& target) {
  std::vector<ActivationRow> rows;
  for (const PaperModel& paper : kPaperModels) {
    ModelConfig model = named_model(paper.name);
    ActivationRow row{.name = paper.name, .s = kLength, .b = paper.micro_batch, .h = model.hidden, .a = model.heads};
    double sbh = static_cast<double>(row.s * row.b * row.h);
    row.paper_none = sbh * (34 + 5.0 * static_cast<double>(row.a * row.s) / static_cast<double>(row.h));
    row.paper_selective = 34 * sbh;
    row.paper_full = 2 * sbh;
    row.kept_none = kept_by_layer(model, paper.micro_batch, Recompute::kNone, recipe, target);
    row.kept_selective = kept_by_layer(model, paper.micro_batch, Recompute::kSelective, recipe, target);
    row.ours_none = sum(row.kept_none);
    row.ours_selective = sum(row.kept_selective);
    row.ours_full = sum(kept_by_layer(model, paper.micro_batch, Recompute::kFull, recipe, target));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string to_text(const std::vector<ActivationRow>& rows, bool explain) {
  std::string out =
      "activation MiB a layer (s 2048)     none: ours    paper  ratio   selective: ours   paper  ratio   full: ours  "
      "paper\n";
  auto mib = [](double bytes) { return bytes / (1024.0 * 1024.0); };
  for (const ActivationRow& r : rows)
    out += fmt::format(
        "{:<12} h {:<6} a {:<4} b {:<2}   {:>10.1f} {:>8.1f}  {:.3f}   {:>14.1f} {:>7.1f}  {:.3f}   {:>10.1f} "
        "{:>6.1f}\n",
        r.name, r.h, r.a, r.b, mib(static_cast<double>(r.ours_none)), mib(r.paper_none),
        static_cast<double>(r.ours_none) / r.paper_none, mib(static_cast<double>(r.ours_selective)),
        mib(r.paper_selective), static_cast<double>(r.ours_selective) / r.paper_selective,
        mib(static_cast<double>(r.ours_full)), mib(r.paper_full));
  if (!explain || rows.empty()) return out;
  const ActivationRow& r = rows[1];
  double sbh = static_cast<double>(r.s * r.b * r.h);
  auto list = [&](const char* title, const std::vector<SavedValue>& kept) {
    out += fmt::format("\nkept by a layer of {}, {} (in units of sbh bytes):\n", r.name, title);
    double total = 0;
    for (const SavedValue& value : kept) {
      double units = static_cast<double>(value.bytes) / sbh;
      total += units;
      out += fmt::format("  {:>8.4f}  {:<16} {:<28} {}\n", units, value.op, value.name, to_string(value.type));
    }
    out += fmt::format("  {:>8.4f}  in all\n", total);
  };
  list("no recomputation", r.kept_none);
  list("selective", r.kept_selective);
  out += fmt::format(
      "\nThe paper keeps, without recomputation ({:.1f} sbh): layer norm inputs 2 x 2, QKV input 2, Q and K 4, V 2,\n"
      "softmax output 2as/h, its dropout mask as/h, dropout output 2as/h, projection input 2, dropout mask 1,\n"
      "MLP input 2, GELU input 8, second linear's input 8, dropout mask 1. With selective recomputation the as/h terms "
      "go.\n",
      r.paper_none / sbh);
  return out;
}

}  // namespace octet
