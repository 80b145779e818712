// octet verify of outputs of whole sequences: hidden states, pooled vectors, logits of tokens and of sequences.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "eval/verify_values.h"
#include "exec/batch.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr const char* kGraph = "encode";

struct Sequences {
  int64_t count = 0, padded = 0, tokens = 0;  // B, S, real ones
  std::vector<int64_t> starts = {0};          // packed, B + 1
  Batch batch;
};

Sequences read_sequences(const TensorSource& expected, const std::string& where, const ModelConfig& model) {
  const TensorType* type = expected.find_type("input_ids");
  check(type != nullptr && type->shape.rank() == 2, ErrorCode::kCorrupt, "{}: want input_ids [sequences, tokens]",
        where);
  Sequences s{.count = type->shape[0], .padded = type->shape[1]};
  const auto of_shape = [&](const char* name, int64_t values) {
    const bool all = name == std::string_view("attention_mask") && expected.find_type(name) == nullptr;
    std::vector<int32_t> found =
        all ? std::vector<int32_t>(static_cast<size_t>(s.count * s.padded), 1) : id_tensor(expected, name, values);
    check(std::ssize(found) == s.count * s.padded, ErrorCode::kCorrupt, "{}: {} has {} values, input_ids {}", where,
          name, found.size(), s.count * s.padded);
    return found;
  };
  const std::vector<int32_t> ids = of_shape("input_ids", model.vocab_size), mask = of_shape("attention_mask", 2);
  const bool typed = model.token_types > 1;
  const std::vector<int32_t> types = typed ? of_shape("token_type_ids", model.token_types) : std::vector<int32_t>();
  for (int64_t b = 0; b < s.count; ++b) {
    const auto row = mask.begin() + b * s.padded;
    const auto length = std::find(row, row + s.padded, 0) - row;
    check(length > 0 && std::count(row, row + s.padded, 1) == length, ErrorCode::kUnsupported,
          "{}: attention_mask of sequence {} is not ones followed by zeros", where, b);
    s.starts.push_back(s.tokens += length);
  }
  s.batch.add("segments", {DType::kI32, {s.count + 1}});
  for (const char* name : {"ids", "positions", "token_types"})
    s.batch.add(name, {DType::kI32, {s.tokens}}, /*optional=*/name != std::string_view("ids"));
  s.batch.add("rows", {DType::kI32, {s.count}}, /*optional=*/true);
  for (int64_t b = 0; b <= s.count; ++b) {
    const auto at = static_cast<size_t>(b), begin = static_cast<size_t>(s.starts[at]);
    s.batch.ints("segments")[at] = static_cast<int32_t>(begin);
    if (b == s.count) break;
    s.batch.ints("rows")[at] = static_cast<int32_t>(begin);
    for (size_t t = begin; t < static_cast<size_t>(s.starts[at + 1]); ++t) {
      const size_t from = at * static_cast<size_t>(s.padded) + t - begin;
      s.batch.ints("ids")[t] = ids[from];
      s.batch.ints("positions")[t] = static_cast<int32_t>(t - begin);
      if (typed) s.batch.ints("token_types")[t] = types[from];
    }
  }
  return s;
}

// Vectors [B, H] of hidden states [T, H].
std::vector<float> pooled(const std::vector<float>& hidden, const Sequences& s, int64_t width, const std::string& how) {
  std::vector<float> result(static_cast<size_t>(s.count * width));
  for (int64_t b = 0; b < s.count; ++b) {
    const int64_t begin = s.starts[static_cast<size_t>(b)], end = s.starts[static_cast<size_t>(b) + 1];
    const int64_t first = how == "last" ? end - 1 : begin, last = how == "cls" ? begin + 1 : end;
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t t = first; t < last; ++t) sum += hidden[static_cast<size_t>(t * width + c)];
      result[static_cast<size_t>(b * width + c)] = static_cast<float>(sum / static_cast<double>(last - first));
    }
  }
  return result;
}

void normalize_rows(std::vector<float>& rows, int64_t width) {
  for (auto row = rows.begin(); row != rows.end(); row += width) {
    double square = 0;
    for (int64_t c = 0; c < width; ++c) square += double{row[c]} * double{row[c]};
    for (int64_t c = 0; c < width; ++c) row[c] = static_cast<float>(row[c] / std::sqrt(square));
  }
}

// The real tokens' rows of [B, S, width].
std::vector<float> packed_rows(const std::vector<float>& padded, const Sequences& s) {
  const int64_t width = std::ssize(padded) / (s.count * s.padded);
  std::vector<float> rows;
  for (int64_t b = 0; b < s.count; ++b) {
    const int64_t length = s.starts[static_cast<size_t>(b) + 1] - s.starts[static_cast<size_t>(b)];
    const auto from = padded.begin() + b * s.padded * width;
    rows.insert(rows.end(), from, from + length * width);
  }
  return rows;
}

}  // namespace

bool has_encoded_outputs(const std::string& folder) {
  const ModelConfig model = read_model_config(folder);
  return !model.causal || model.head == Head::kNone;
}

VerifyReport verify_encoder(const std::string& folder, const Recipe& recipe, const Target& target, bool interpret) {
  const auto weights = open_weights(folder);
  const ModelConfig& model = weights->config();
  const std::string where = folder + "/expected.safetensors";
  const auto expected = open_safetensors(where);
  const Sequences s = read_sequences(*expected, where, model);

  Graph graph(kGraph);
  Builder builder(graph);
  const ModelOutputs outputs =
      build_outputs(builder, model, {.tokens = s.tokens, .max_segments = s.count, .max_length = s.padded});
  for (const auto& [name, value] :
       {std::pair("hidden", outputs.hidden), {"logits", outputs.logits}, {"classes", outputs.classes}})
    if (value.exists()) builder.output(name, value);
  const CompileOptions options{.target = target, .recipe = recipe};
  Program program;
  program.name = kGraph;
  program.add_graph(std::move(graph));
  Plan plan = compile(std::move(program), options);
  const auto executor = interpret ? make_interpreter(std::move(plan.program)) : make_executor(std::move(plan));
  load_weights(*weights, *executor);
  write_inputs(*executor, kGraph, s.batch);
  executor->run(kGraph);

  const auto output = [&](const char* name) {
    const Graph& planned = executor->program().graph(kGraph);
    const TensorType& type = planned.type(planned.output(name));
    std::vector<float> values(static_cast<size_t>(type.shape.elements()));
    convert(type.dtype, executor->output(kGraph, name).data(), DType::kF32, values.data(), std::ssize(values));
    return values;
  };
  const std::vector<float> hidden = output("hidden");
  std::map<std::string, std::vector<float>> ours = {{"last_hidden_state", hidden}};
  for (const std::string how : {"cls", "mean", "last"}) {
    ours[how] = ours[how + "_normalized"] = pooled(hidden, s, model.hidden, how);
    normalize_rows(ours[how + "_normalized"], model.hidden);
  }
  const char* of_tokens = model.head == Head::kNextToken ? "logits" : "prediction_logits";
  if (outputs.logits.exists()) ours[of_tokens] = output("logits");
  if (outputs.classes.exists())
    ours[outputs.logits.exists() ? "seq_relationship_logits" : "logits"] = output("classes");

  std::vector<float> all, all_wanted;
  std::vector<std::string> names;
  std::pair<double, std::string> worst = {-1, ""};
  for (const auto& [name, values] : ours) {
    if (expected->find_type(name) == nullptr) continue;
    std::vector<float> wanted = floats_of(expected->read(name));
    if (name == "last_hidden_state" || (outputs.logits.exists() && name == of_tokens)) wanted = packed_rows(wanted, s);
    check(wanted.size() == values.size(), ErrorCode::kCorrupt,
          "{}: {} holds {} values of these tokens, the model gives {}", where, name, wanted.size(), values.size());
    worst = std::max(worst, {compare_values(values, wanted).relative_error, name});
    all.insert(all.end(), values.begin(), values.end());
    all_wanted.insert(all_wanted.end(), wanted.begin(), wanted.end());
    names.push_back(name);
  }
  check(!names.empty(), ErrorCode::kCorrupt,
        "{}: contains none of the model's outputs (last_hidden_state, cls, mean, last, prediction_logits, logits)",
        where);
  VerifyReport report = compare_values(all, all_wanted);
  report.compared = names, report.worst = worst.second;
  return report;
}

}  // namespace octet
