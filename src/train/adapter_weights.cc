#include "train/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "exec/logical_states.h"
#include "passes/adapt.h"
#include "weights/adapter_folder.h"
#include "weights/fill_nf4.h"

namespace octet {
namespace {

constexpr std::string_view kMagnitude = ".magnitude";

// Random numbers that a parameter begins with, on whichever rank: by its name (FNV-1a).
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return hash;
}

const TensorType* find_trained(const TensorSource& file, const std::string& checkpoint, const std::string& param,
                               const Shape& shape) {
  const TensorType* type = file.find_type(param);
  check(
      type != nullptr && type->shape == shape, ErrorCode::kInvalidArgument,
      "{}/{}: {} {}, this run's adapter wants {}: set adapter.* of the checkpoint, or start a new run in another out=",
      checkpoint, kTrainedFile, param, type == nullptr ? "is not in it" : "is " + to_string(*type), to_string(shape));
  return type;
}

// The rows that P-tuning's encoder makes: [virtual tokens, hidden].
std::vector<float> encoded_prompt(const std::function<std::vector<float>(const std::string&)>& read,
                                  const AdapterSpec& adapter, int64_t hidden) {
  Graph graph(GraphRole::kEval);
  Builder builder(graph);
  builder.output("prompt", build_prompt(builder, adapter, hidden));
  Program program;
  program.add_graph(std::move(graph));
  collect_state(program);
  const std::unique_ptr<Executor> executor = make_interpreter(program);
  for (const StateEntry& entry : program.states()) {
    const std::vector<float> values = read(entry.name);
    executor->write_state(entry.name, std::as_bytes(std::span(values)));
  }
  executor->prepare();
  const std::string name = graph_role_name(GraphRole::kEval);
  executor->run(name);
  const auto rows = output_as<float>(*executor, name, "prompt");
  return {rows.begin(), rows.end()};
}

class AdaptedSource : public WeightSource {
 public:
  AdaptedSource(const WeightSource& base, const AdapterSpec& adapter, const std::string& checkpoint, uint64_t seed,
                const Program& program)
      : base_(base),
        adapter_(adapter),
        checkpoint_(checkpoint),
        seed_(seed),
        program_(program),
        shapes_(param_shapes(base.config())) {
    config_ = base.config(), special_ = base.special();
    if (!checkpoint.empty()) file_ = open_safetensors(checkpoint, kTrainedFile);
  }

  ParamView view(const std::string& param, const Shape& shape) const override {
    const StateEntry* entry = program_.find_state(param, StateRole::kMaster);
    const bool trained = entry != nullptr && entry->update != Update::kNone;
    if (trained && file_) return stored(param, shape);
    if (!trained || shapes_.contains(param)) return base_.view(param, shape);
    std::vector<float>& values = fresh_[param] = first_values(param, shape);
    return view_of(DType::kF32, values.data(), shape[0], shape.elements() / shape[0], param);
  }

 private:
  ParamView stored(const std::string& param, const Shape& shape) const {
    const TensorType* type = find_trained(*file_, checkpoint_, param, shape);
    return view_of(type->dtype, file_->read(param).bytes.data(), shape[0], shape.elements() / shape[0],
                   checkpoint_ + ": " + param);
  }

  std::vector<float> first_values(const std::string& param, const Shape& shape) const {
    if (param.ends_with(kMagnitude)) return row_norms(param.substr(0, param.size() - kMagnitude.size()), shape[0]);
    if (param == "embed.token_rows") return table_rows(adapter_.token_rows);
    if (param == "prompt.weight") {  // of tokens drawn, as Lester et al. begin (arXiv 2104.08691)
      Philox random(seed_, stream_of(param));
      std::vector<int64_t> ids(static_cast<size_t>(shape[0]));
      for (int64_t& id : ids) id = static_cast<int64_t>(random.below(static_cast<uint64_t>(config_.vocab_size)));
      return table_rows(ids);
    }
    const Node* leaf = find_leaf(program_, param);
    if (leaf == nullptr) return std::vector<float>(static_cast<size_t>(shape.elements()));  // another stage's
    return initial_values(*leaf, shape.elements(), seed_, stream_of(param));
  }

  std::vector<float> table_rows(const std::vector<int64_t>& ids) const {
    const Shape shape{config_.vocab_size, config_.hidden};
    const ParamView table = base_.view("embed.weight", shape);
    std::vector<float> rows(ids.size() * static_cast<size_t>(config_.hidden));
    for (size_t i = 0; i < ids.size(); ++i)
      read_rows(table, ids[i], 1, DType::kF32, rows.data() + i * static_cast<size_t>(config_.hidden));
    return rows;
  }

  // Of the weights of a linear, or of those that are fused.
  std::vector<float> row_norms(const std::string& name, int64_t rows) const {
    std::vector<float> norms;
    const auto low = std::ranges::find(adapter_.low_rank, name, &LowRank::name);
    check(low != adapter_.low_rank.end(), ErrorCode::kInternal, "no adapter is called {}", name);
    for (std::string param : low->params) {
      if (!shapes_.contains(param)) param = "embed.weight";  // a tied head
      const Shape& shape = shapes_.at(param);
      const ParamView view = base_.view(param, shape);
      const bool nf4 = program_.find_state(param, StateRole::kMagnitudes) != nullptr;
      const std::vector<float> values = nf4 ? round_to_nf4(view, adapter_.nf4) : read_floats(view);
      for (int64_t r = 0; r < shape[0]; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < shape[1]; ++k) {
          const double value = values[static_cast<size_t>(r * shape[1] + k)];
          sum += value * value;
        }
        norms.push_back(static_cast<float>(std::sqrt(sum)));
      }
    }
    check(std::ssize(norms) == rows, ErrorCode::kInternal, "{} has {} magnitudes and {} rows", name, rows,
          norms.size());
    return norms;
  }

  const WeightSource& base_;
  const AdapterSpec& adapter_;
  const std::string& checkpoint_;
  uint64_t seed_;
  const Program& program_;
  ParamShapes shapes_;
  std::unique_ptr<TensorSource> file_;
  mutable std::map<std::string, std::vector<float>> fresh_;
};

}  // namespace

void check_same_adapter(const std::string& checkpoint, const Graph& loss) {
  const std::unique_ptr<TensorSource> file = open_safetensors(checkpoint, kTrainedFile);
  for (const Node& node : loss.nodes())
    if (node.op == Op::kParam && !is_frozen(node)) find_trained(*file, checkpoint, node.name, node.results[0].shape);
}

void write_peft_files(const std::string& checkpoint, const AdapterSpec& adapter, const ModelConfig& model,
                      const std::string& base, DType dtype) {
  const std::unique_ptr<TensorSource> file = open_safetensors(checkpoint, kTrainedFile);
  const std::function<std::vector<float>(const std::string&)> read = [&](const std::string& name) {
    if (name == "prompt.weight" && adapter.encoder_hidden > 0) return encoded_prompt(read, adapter, model.hidden);
    const TensorView stored = file->read(name);
    return read_floats(view_of(stored.type.dtype, stored.bytes.data(), stored.type.shape.elements(), 1, name));
  };
  try {
    write_adapter(checkpoint, adapter, model, read, {.base = std::filesystem::absolute(base).string(), .dtype = dtype});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    log_warning("{} has no files of PEFT, which serving an adapter wants: {}", checkpoint, error.message());
  }
}

void load_adapted(const WeightSource& base, const AdapterSpec& adapter, const std::string& checkpoint, uint64_t seed,
                  Executor& executor, const BytesLoaded& loaded) {
  load_weights(AdaptedSource(base, adapter, checkpoint, seed, executor.program()), executor, loaded);
}

}  // namespace octet
