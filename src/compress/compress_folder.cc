#include "compress/compress_folder.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compress/packed_tensors.h"
#include "io/tokenizer.h"
#include "weights/packed_folder.h"
#include "weights/quantized_folder.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJournal = "/quantize.json";
constexpr std::array<const char*, 3> kOrders = {"", "group", "weight"};  // as compressed-tensors calls them

// What two runs must share for one to go on with the other's files.
Json settings_of(const WeightSource& source, const CompressFolderOptions& options) {
  const CompressRule& rule = options.rule;
  const std::span ids = std::as_bytes(std::span(options.ids));
  return {{"model", to_hugging_face_config(source.config(), source.special(), "")},
          {"method", compress_method_name(rule.method)},
          {"bits", rule.codes.bits},
          {"group", rule.codes.group},
          {"symmetric", rule.codes.symmetric},
          {"alpha", rule.alpha},
          {"damping", rule.damping},
          {"act-order", kOrders[static_cast<size_t>(rule.order)]},
          {"bound", rule.bound},
          {"keep", rule.keep},
          {"rest", dtype_name(options.rest)},
          {"length", options.length},
          {"tokens", options.ids.size()},
          {"crc32c of the tokens", crc32c(ids.data(), ids.size())}};
}

PackedScheme scheme_of(const CodeRule& rule) {
  return {.method = PackedMethod::kCompressed,
          .format = rule.bits == 4 ? DType::kI4 : DType::kI8,
          .layout = rule.group == 32    ? ScaleLayout::kRow32
                    : rule.group == 64  ? ScaleLayout::kRow64
                    : rule.group == 128 ? ScaleLayout::kRow128
                                        : ScaleLayout::kRow,
          .symmetric = rule.symmetric};
}

// The weights of one layer, from its file.
class LayerWeights : public WeightSource {
 public:
  LayerWeights(const std::string& path, const ModelConfig& config, const CodeRule& rule)
      : path_(path),
        tensors_(path),
        packed_(tensors_, config, scheme_of(rule), path),
        list_(checkpoint_tensors(config)) {
    config_ = config;
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    std::vector<ParamView> parts;
    for (const CheckpointTensor& tensor : list_) {
      const auto i = static_cast<size_t>(std::ranges::find(tensor.params, param) - tensor.params.begin());
      if (i == tensor.params.size()) continue;
      const std::string name = path_ + ": " + param;
      parts.push_back(packed_.holds(tensor.name) ? packed_.view(tensor, i, name)
                                                 : view_of(tensor, i, tensors_.read(tensor.name), name));
    }
    check(!parts.empty(), ErrorCode::kInternal, "no checkpoint tensor holds parameter {} {}", param, to_string(shape));
    return stacked(parts);
  }

 private:
  std::string path_;
  TensorSource tensors_;
  PackedTensors packed_;
  std::vector<CheckpointTensor> list_;
};

class FolderRun {
 public:
  FolderRun(const WeightSource& source, const std::string& folder, const CompressFolderOptions& options)
      : source_(source),
        options_(options),
        folder_(folder),
        layers_(source.config(), options.length),
        shapes_(param_shapes(source.config())),
        tensors_(checkpoint_tensors(source.config())),
        settings_(settings_of(source, options)) {
    for (int64_t i = 0; i < layers_.layers(); ++i) parts_.push_back(tensors_of(i));
    parts_.push_back({});
    for (const CheckpointTensor& tensor : tensors_)
      if (!placed_.contains(tensor.name)) parts_.back().push_back(tensor);
    read_journal();
  }

  void run(const std::function<void(int64_t, int64_t, const std::string&)>& on_layer) {
    const int64_t layers = layers_.layers();
    CalibrationRun text(source_, options_.ids, options_.length, options_.target);
    for (int64_t i = 0; i < layers; ++i) {
      if (i < std::ssize(done_))
        pass_layer(i, text);
      else
        make_layer(i, text);
      if (on_layer) on_layer(i + 1, layers, summary(done_[static_cast<size_t>(i)]));
    }
  }

  void finish(const std::string& tokenizer_folder, const std::string& config) {
    write_part(layers_.layers(), source_, {});
    std::vector<SafetensorsFile> files;
    for (size_t i = 0; i < parts_.size(); ++i) {
      SafetensorsFile file{.name = file_name(static_cast<int64_t>(i)), .tensors = {}};
      const TensorSource source(folder_ + "/" + file.name);
      for (const std::string& name : source.names()) file.tensors.push_back({name, *source.find_type(name)});
      files.push_back(std::move(file));
    }
    write_index(folder_, "model", files);
    copy_tokenizer_files(tokenizer_folder, folder_);
    write_file(folder_ + "/config.json",
               with_integer_codes(config, options_.rule.codes, kOrders[static_cast<size_t>(options_.rule.order)],
                                  ignored_modules()));
    remove_path(folder_ + kJournal);
  }

  std::vector<LinearReport> report() const {
    std::vector<LinearReport> all;
    for (const auto& layer : done_) all.insert(all.end(), layer.begin(), layer.end());
    return all;
  }

 private:
  bool gptq() const { return options_.rule.method == CompressMethod::kGptq; }

  std::string file_name(int64_t part) const {
    return fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts_.size());
  }

  std::vector<CheckpointTensor> tensors_of(int64_t layer) {
    std::set<std::string> params;
    const LayerGraph part = layers_.layer(layer);
    for (const Node& node : part.graph.nodes())
      if (node.op == Op::kParam) params.insert(node.name);
    std::vector<CheckpointTensor> result;
    for (const CheckpointTensor& tensor : tensors_) {
      if (!params.contains(tensor.params[0])) continue;
      result.push_back(tensor);
      placed_.insert(tensor.name);
    }
    return result;
  }

  // Reads what the layer makes from the files that are there: for GPTQ, whose later layers depend on it.
  void pass_layer(int64_t layer, CalibrationRun& text) const {
    if (!gptq()) return text.advance(layers_.layer(layer), source_);
    const std::string path = folder_ + "/" + file_name(layer);
    text.advance(layers_.layer(layer), LayerWeights(path, source_.config(), options_.rule.codes));
  }

  void make_layer(int64_t layer, CalibrationRun& text) {
    const LayerGraph graph = layers_.layer(layer);
    EditedWeights weights(source_);
    CompressedLayer made =
        compress_layer(text.observe(graph, source_, gptq(), /*advance=*/!gptq()), weights, options_.rule);
    write_part(layer, weights, made.codes);
    done_.push_back(std::move(made.report));
    write_journal();
    // What is in the file is what later layers see, to the bit: a run that goes on is the same run.
    if (gptq()) pass_layer(layer, text);
  }

  void write_part(int64_t part, const WeightSource& weights,
                  const std::map<std::string, std::vector<GroupCodes>>& codes) const {
    std::map<std::string, std::vector<std::byte>> bytes;
    std::vector<NamedType> types;
    const auto add = [&](const NamedType& type, std::vector<std::byte> content) {
      types.push_back(type);
      bytes[type.name] = std::move(content);
    };
    for (const CheckpointTensor& tensor : parts_[static_cast<size_t>(part)]) {
      std::vector<GroupCodes> members;
      for (const std::string& param : tensor.params)
        if (const auto found = codes.find(param.substr(0, param.rfind('.')));
            found != codes.end() && param.ends_with(".weight"))
          members.push_back(found->second.at(static_cast<size_t>(tensor.part)));
      if (!members.empty()) {
        for (StoredTensor& stored : packed_tensors(tensor, members)) add(stored.type, std::move(stored.bytes));
        continue;
      }
      const Shape shape = tensor_shape(tensor, shapes_);
      const std::vector<float> values = join_params(tensor, shape.elements(), [&](size_t i) {
        return read_part(weights.view(tensor.params[i], shapes_.at(tensor.params[i])), tensor.part, tensor.parts);
      });
      add({tensor.name, {options_.rest, shape}}, stored_bytes(tensor, shape, values, options_.rest));
    }
    SafetensorsWriter writer(folder_ + "/" + file_name(part), types, {{"format", "pt"}});
    for (const NamedType& type : writer.tensors()) writer.write(type.name, bytes.at(type.name));
    writer.finish();
  }

  // Modules of linears that stay, as the folder calls them, routers among them, and the head.
  std::vector<std::string> ignored_modules() const {
    std::set<std::string> kept;
    for (const LinearReport& linear : report())
      if (linear.kept) kept.insert(linear.gemm + ".weight");
    const std::string head = head_tensor(source_.config());
    std::vector<std::string> modules = {head.substr(0, head.rfind('.'))};
    for (const CheckpointTensor& tensor : tensors_)
      if (kept.contains(tensor.params[0]) || tensor.params[0].ends_with("router.weight"))
        modules.push_back(tensor.name.substr(0, tensor.name.rfind('.')));
    return modules;
  }

  static std::string summary(const std::vector<LinearReport>& layer) {
    const LinearReport* worst = nullptr;
    for (const LinearReport& linear : layer)
      if (worst == nullptr || linear.error > worst->error) worst = &linear;
    return worst != nullptr ? fmt::format("worst {} {:.2f} %", worst->gemm, 100 * worst->error) : "";
  }

  void write_journal() const {
    Json layers = Json::array();
    for (const auto& layer : done_) {
      Json entries = Json::array();
      for (const LinearReport& linear : layer)
        entries.push_back(
            {{"gemm", linear.gemm}, {"error", linear.error}, {"kept", linear.kept}, {"unseen", linear.unseen}});
      layers.push_back(entries);
    }
    write_file(folder_ + kJournal, Json{{"settings", settings_}, {"layers", layers}}.dump(1) + "\n");
  }

  void read_journal() {
    const std::string path = folder_ + kJournal;
    if (!path_exists(path)) return;
    try {
      const Json journal = Json::parse(read_file(path));
      for (const auto& [key, value] : settings_.items())
        check(journal.at("settings").at(key) == value, ErrorCode::kInvalidArgument,
              "{} contains an interrupted run with other settings: {} was {} and is {}: give the earlier settings, or "
              "remove the folder",
              folder_, key, journal.at("settings").at(key).dump(), value.dump());
      for (const Json& layer : journal.at("layers")) {
        std::vector<LinearReport>& entries = done_.emplace_back();
        for (const Json& entry : layer)
          entries.push_back({entry.at("gemm"), entry.at("error"), entry.at("kept"), entry.at("unseen")});
      }
    } catch (const Json::exception& error) {
      fail(ErrorCode::kCorrupt, "{}: {}: remove the folder and start again", path, error.what());
    }
    check(std::ssize(done_) <= layers_.layers(), ErrorCode::kCorrupt, "{} has {} layers of {}", path, done_.size(),
          layers_.layers());
  }

  const WeightSource& source_;
  const CompressFolderOptions& options_;
  std::string folder_;
  LayerGraphs layers_;
  ParamShapes shapes_;
  std::vector<CheckpointTensor> tensors_;
  Json settings_;
  std::set<std::string> placed_;                      // tensors of layers
  std::vector<std::vector<CheckpointTensor>> parts_;  // of the layers' files, then of the last file
  std::vector<std::vector<LinearReport>> done_;       // by layer
};

}  // namespace

void check_compress_options(const WeightSource& source, const CompressRule& rule) {
  const bool eight = rule.codes.bits == 8;
  check(eight ? rule.method != CompressMethod::kAwq : rule.method != CompressMethod::kSmoothQuant,
        ErrorCode::kInvalidArgument,
        "method {} does not support {} bits: int4 has awq, gptq and rtn, int8 has smoothquant, gptq and rtn",
        compress_method_name(rule.method), rule.codes.bits);
  check(rule.method == CompressMethod::kGptq || rule.order == ColumnOrder::kAsStored, ErrorCode::kInvalidArgument,
        "an order of columns by activations (--act-order) is GPTQ's; the method is {}",
        compress_method_name(rule.method));
  check(source.config().architecture != "llama" || !source.config().rope.interleaved, ErrorCode::kUnsupported,
        "a llama2.c file interleaves the elements of rotary heads, which folders do not: quantize the Hugging Face "
        "folder of this model");
  const ParamShapes shapes = param_shapes(source.config());
  const LinearLayout layout = linear_layout(source.config());
  for (const std::string& word : rule.keep)
    check(std::ranges::any_of(layout.x_of, [&](const auto& linear) { return names_linear(word, linear.first); }),
          ErrorCode::kInvalidArgument, "--keep {}: no linear has this name (names are {} and so on)", word,
          layout.x_of.begin()->first);
  std::set<std::string> kept;  // inputs
  for (const auto& [gemm, x] : layout.x_of)
    for (const std::string& word : rule.keep)
      if (names_linear(word, gemm)) kept.insert(x);
  for (const auto& [gemm, x] : layout.x_of)
    if (!kept.contains(x)) check_rule(rule.codes, shapes.at(gemm + ".weight")[1], gemm);
}

bool has_interrupted_run(const std::string& folder) { return path_exists(folder + kJournal); }

std::vector<LinearReport> compress_folder(const WeightSource& source, const std::string& tokenizer_folder,
                                          const std::string& folder, const CompressFolderOptions& options,
                                          const std::function<void(int64_t, int64_t, const std::string&)>& on_layer) {
  check_compress_options(source, options.rule);
  const std::string config =  // before the work: not every model can be said there
      to_hugging_face_config(source.config(), source.special(), options.rest == DType::kF32 ? "float32" : "bfloat16");
  make_folders(folder);
  const FolderLock lock(folder);
  FolderRun run(source, folder, options);
  run.run(on_layer);
  run.finish(tokenizer_folder, config);
  remove_path(folder + "/lock");
  return run.report();
}

}  // namespace octet
