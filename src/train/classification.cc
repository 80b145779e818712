#include "train/classification.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/integers.h"
#include "base/json.h"
#include "base/threads.h"
#include "io/corpus.h"
#include "io/dataset.h"
#include "io/tokenizer.h"
#include "train/run_config.h"

namespace octet {
namespace {

using Json = nlohmann::json;

struct Line {
  std::string text, where;
  std::optional<std::string> pair;
  std::string name;     // of its label
  int64_t number = -1;  // where that is an integer instead
};

Line parse_line(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  Line line{.text = json_get<std::string>(json, "text", where), .where = where};
  check(!line.text.empty(), ErrorCode::kInvalidArgument, "{}: \"text\" is empty", where);
  if (json.contains("text_pair") && !json["text_pair"].is_null())
    line.pair = json_get<std::string>(json, "text_pair", where);
  const Json label = json.value("label", Json());
  check(label.is_string() || (label.is_number_integer() && label >= 0 && label < kMaxWidth),
        ErrorCode::kInvalidArgument, "{}: \"label\" is {} (want a name, or a whole number from 0 on)", where,
        label.dump());
  if (label.is_string())
    line.name = label.get<std::string>();
  else
    line.number = label.get<int64_t>();
  return line;
}

std::vector<Line> read_lines(const std::string& setting, const std::string& path) {
  check(!path.empty(), ErrorCode::kInvalidArgument,
        "{} is not set: give a file of JSON lines {{\"text\": .., \"label\": ..}}", setting);
  const TextOptions options{.format = CorpusFormat::kJsonLines};
  CorpusReader reader(list_corpus({path}), options);
  TextCounts counts;
  std::vector<Line> lines;
  for (CorpusBatch batch; reader.next(batch);)
    each_json_line(batch, reader.files(), options, counts, [&](std::string_view text, const std::string& where) {
      if (text.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back(parse_line(text, where));
    });
  check(!lines.empty(), ErrorCode::kInvalidArgument, "{}: {} has no lines", setting, path);
  return lines;
}

// Of labels 0, 1, ..: id2label of a folder that classifies; empty of another.
std::vector<std::string> names_in(const std::string& folder) {
  if (!is_classifier(folder)) return {};
  const ModelConfig model = read_model_config(folder);
  const Json json = parse_json(read_file(folder + "/config.json"), folder + "/config.json");
  std::vector<std::string> names;
  for (int64_t i = 0; i < model.labels; ++i) names.push_back(fmt::format("LABEL_{}", i));
  if (json.contains("id2label"))
    for (const auto& [id, name] : json["id2label"].items())
      for (size_t i = 0; i < names.size(); ++i)
        if (id == std::to_string(i) && name.is_string()) names[i] = name.get<std::string>();
  return names;
}

// Sorted, of labels by name; of numbers LABEL_0 to the largest.
std::vector<std::string> names_of(const std::vector<Line>& lines) {
  std::set<std::string> names;
  int64_t numbers = 0;
  for (const Line& line : lines) {
    check((line.number < 0) == (lines[0].number < 0), ErrorCode::kInvalidArgument,
          "{}: its label is a {}, that of {} is not: want all names, or all numbers", line.where,
          line.number < 0 ? "name" : "number", lines[0].where);
    if (line.number < 0) names.insert(line.name);
    numbers = std::max(numbers, line.number + 1);
  }
  std::vector<std::string> all(names.begin(), names.end());
  for (int64_t i = 0; i < numbers; ++i) all.push_back(fmt::format("LABEL_{}", i));
  check(all.size() >= 2, ErrorCode::kInvalidArgument, "{}: all labels are '{}': there is nothing to tell apart",
        lines[0].where, all[0]);
  return all;
}

LabelledTexts encode_lines(const std::vector<Line>& lines, const Tokenizer& tokenizer,
                           const std::vector<std::string>& names, int64_t vocab_size, int64_t length) {
  LabelledTexts all{.texts = std::vector<EncodedTexts>(lines.size())};
  for (const Line& line : lines) {
    const auto found = std::ranges::find(names, line.name);
    const int64_t label = line.number >= 0 ? line.number : found - names.begin();
    check(label < std::ssize(names), ErrorCode::kInvalidArgument, "{}: label {} is none of the model's: {}", line.where,
          line.number >= 0 ? std::to_string(line.number) : "'" + line.name + "'", fmt::join(names, ", "));
    all.labels.push_back(static_cast<int32_t>(label));
  }
  parallel_for(std::ssize(lines), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Line& line = lines[static_cast<size_t>(i)];
      const auto pair = line.pair ? std::optional<std::string_view>(*line.pair) : std::nullopt;
      all.texts[static_cast<size_t>(i)] = encode_texts(tokenizer, line.text, pair, length);
    }
  });
  const auto add = [&](const std::vector<int32_t>& values) {
    all.checksum = crc32c(values.data(), std::ssize(values) * int64_t{4}, all.checksum);
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::vector<int32_t>& ids = all.texts[i].ids;
    check(std::ranges::all_of(ids, [&](int32_t id) { return id < vocab_size; }), ErrorCode::kInvalidArgument,
          "{}: has token {}, the model's vocabulary {}: the folder's tokenizer is of another model", lines[i].where,
          std::ranges::max(ids), vocab_size);
    add(ids);
  }
  add(all.labels);
  return all;
}

ModelConfig classifying_model(const RunConfig& config, int64_t labels) {
  check(!config.model_from.empty(), ErrorCode::kInvalidArgument,
        "workload=classify trains a finished encoder: set model.from to its folder");
  ModelConfig model = resolve_model(config, 0);
  const std::vector<std::string> encoders = encoder_architectures();
  check(std::ranges::find(encoders, model.architecture) != encoders.end(), ErrorCode::kUnsupported,
        "workload=classify trains encoders ({}), and {} is of family {}", fmt::join(encoders, ", "), config.model_from,
        model.architecture);
  model.head = Head::kNone, model.pooler = true, model.labels = labels, model.bias.head = false;
  return model;
}

BatchShape classes_shape(const RunConfig& c) {
  return {.tokens = c.micro_batch * c.sequence_length,
          .max_segments = c.micro_batch,
          .max_length = c.sequence_length,
          .training = true};
}

enum ClassNumber { kLoss, kRight, kTexts, kPerClass };  // then of each class: right, said to be it, that are it

}  // namespace

bool is_classifier(const std::string& folder) {
  if (!path_exists(folder + "/config.json")) return false;
  const ModelConfig model = read_model_config(folder);
  return model.labels > 0 && model.head == Head::kNone;
}

const WorkloadRow kClassification = {
    .optimizer = {.lr = 2e-5, .min_lr = 0, .warmup_steps = 0, .beta2 = 0.999, .weight_decay = 0.01},
    .open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> { return Classification::open(config); },
    .plan = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
      std::vector<std::string> names =
          config.model_from.empty() ? std::vector<std::string>() : names_in(config.model_from);
      if (names.empty()) names = {"LABEL_0", "LABEL_1"};
      const auto labels = std::ssize(names);
      return std::make_unique<Classification>(classifying_model(config, labels), std::move(names), config);
    },
    .set_defaults =
        [](RunConfig& config) { config.sequence_length = 128, config.micro_batch = 16, config.dropout = 0.1; }};

Classification::Classification(ModelConfig model, std::vector<std::string> names, const RunConfig& config)
    : EncoderTraining(std::move(model), config, classes_shape(config)),
      names_(std::move(names)),
      seed_(static_cast<uint64_t>(config.seed)) {
  check(config.pipeline == 1, ErrorCode::kUnsupported,
        "parallel.pipeline={}: workload=classify has no stages: set it to 1", config.pipeline);
  check(!config.adapter.is_on(), ErrorCode::kUnsupported,
        "adapter.method={}: adapters are trained by workload=language alone", config.adapter.method);
}

std::unique_ptr<Classification> Classification::open(const RunConfig& config) {
  const std::vector<Line> lines = read_lines("data.train", config.train_data);
  classifying_model(config, 2);  // before its folder is read for names
  std::vector<std::string> names = names_in(config.model_from);
  if (names.empty()) names = names_of(lines);
  const std::unique_ptr<const Tokenizer> tokenizer = load_tokenizer(config.model_from);
  const auto labels = std::ssize(names);
  auto made = std::make_unique<Classification>(classifying_model(config, labels), std::move(names), config);
  made->train_ = encode_lines(lines, *tokenizer, made->names_, made->model().vocab_size, config.sequence_length);
  made->record_ = {
      .data = fmt::format("{} texts length {} labels {} seed {} batch {}", lines.size(), config.sequence_length,
                          fmt::join(made->names_, ","), config.seed, config.accumulation() * config.micro_batch),
      .checksum = fmt::format("{:08x}", made->train_.checksum)};
  if (config.validation_data.empty()) return made;
  made->validation_ = encode_lines(read_lines("data.validation", config.validation_data), *tokenizer, made->names_,
                                   made->model().vocab_size, config.sequence_length);
  made->record_.validation =
      fmt::format("{} texts checksum {:08x} length {}, {} of them", made->validation_.texts.size(),
                  made->validation_.checksum, config.sequence_length, config.eval_tokens);
  return made;
}

std::unique_ptr<Classification> Classification::open_finished(const RunConfig& config) {
  std::vector<std::string> names = names_in(config.model_from);
  check(!names.empty(), ErrorCode::kInvalidArgument, "{}: its config.json describes no sequence classification",
        config.model_from);
  const auto labels = std::ssize(names);
  auto made = std::make_unique<Classification>(classifying_model(config, labels), std::move(names), config);
  made->validation_ = encode_lines(read_lines("--data", config.validation_data), *load_tokenizer(config.model_from),
                                   made->names_, made->model().vocab_size, config.sequence_length);
  return made;
}

Graph Classification::loss(GraphRole role, int64_t) const {
  Graph graph(role);
  Builder b(graph);
  BatchShape shape = shape_;
  shape.training = role == GraphRole::kTrain;
  const Value classes = build_outputs(b, model(), shape).classes;
  const Value labels = b.input("labels", {DType::kI32, {shape.max_segments}}, {{"pad", -1}});
  b.output("loss", b.reduce(b.cross_entropy(classes, labels).per_token, "sum", "all"));
  if (role == GraphRole::kEval) output_likeliest(b, "likeliest", classes);
  return graph;
}

std::unique_ptr<TrainingWorkload> Classification::with_settings(const RunConfig& config) const {
  return std::make_unique<Classification>(model(), names_, config);
}

// Training text i of epoch e is text permutation(i) of the file, the permutation drawn by the seed and e.
Batch Classification::batch(DataSplit split, int64_t index) const {
  const bool training = split == DataSplit::kTraining;
  const LabelledTexts& from = training ? train_ : validation_;
  const int64_t all = std::ssize(from.texts), many = shape_.max_segments;
  Batch batch;
  SequencePacker packer(batch, shape_);
  batch.add("labels", {DType::kI32, {many}});
  const auto labels = batch.ints("labels");
  std::ranges::fill(labels, -1);
  for (int64_t i = index * many; i < (index + 1) * many && (training || i < all); ++i) {
    const auto at =
        static_cast<size_t>(training ? IndexPermutation(all, seed_, static_cast<uint64_t>(i / all))(i % all) : i);
    labels[static_cast<size_t>(packer.sequences())] = from.labels[at];
    packer.add(from.texts[at].ids, from.texts[at].types);
  }
  batch.target_count = packer.sequences();
  return batch;
}

int64_t Classification::validation_batches() const {
  return ceil_div(std::ssize(validation_.texts), shape_.max_segments);
}

std::vector<Metric> Classification::metrics() const {
  return {{.name = "accuracy", .higher_is_better = true}, {.name = "f1", .higher_is_better = true}, {.name = "loss"}};
}

std::vector<double> Classification::measure(const Batch& batch, const EvalOutputs& outputs) const {
  const size_t classes = names_.size();
  std::vector<double> numbers(kPerClass + 3 * classes);
  numbers[kLoss] = outputs.scalar("loss"), numbers[kTexts] = static_cast<double>(batch.target_count);
  const std::vector<int32_t> likeliest = outputs.ints("likeliest");
  const std::span<const int32_t> labels = batch.ints("labels");
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) continue;
    const auto is = static_cast<size_t>(labels[i]), said = static_cast<size_t>(likeliest[i]);
    numbers[kRight] += is == said;
    numbers[kPerClass + is] += is == said;
    ++numbers[kPerClass + classes + said];
    ++numbers[kPerClass + 2 * classes + is];
  }
  return numbers;
}

// F1 of two classes is that of label 1, as GLUE has it; of more the mean of those that are there or are said to be.
std::vector<double> Classification::join(const std::vector<std::vector<double>>& numbers, double) const {
  const size_t classes = names_.size();
  std::vector<double> sum(kPerClass + 3 * classes);
  for (size_t n = 0; n < numbers.size(); ++n) sum[n] = std::reduce(numbers[n].begin(), numbers[n].end());
  double f1 = 0, counted = 0;
  for (size_t c = classes == 2 ? 1 : 0; c < classes; ++c) {
    const double both = sum[kPerClass + classes + c] + sum[kPerClass + 2 * classes + c];
    if (both > 0) f1 += 2 * sum[kPerClass + c] / both, ++counted;
  }
  return {sum[kRight] / sum[kTexts], counted > 0 ? f1 / counted : 0, sum[kLoss] / sum[kTexts]};
}

void Classification::write_files(const std::string& folder, DType weights) const {
  EncoderTraining::write_files(folder, weights);
  const std::string path = folder + "/config.json";
  auto json = nlohmann::ordered_json::parse(read_file(path));
  json["id2label"] = json["label2id"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < names_.size(); ++i)
    json["id2label"][std::to_string(i)] = names_[i], json["label2id"][names_[i]] = i;
  json["num_labels"] = names_.size(), json["problem_type"] = "single_label_classification";
  write_file(path, json.dump(2) + "\n");
}

ClassifierScores evaluate_classifier(const std::string& folder, const std::string& file, int64_t length, int64_t batch,
                                     const CompileOptions& options) {
  RunConfig config = default_settings("classify");
  config.model_from = folder, config.validation_data = file, config.micro_batch = batch;
  const int64_t most = read_model_config(folder).length_limit();
  config.sequence_length = length > 0 ? length : most > 0 ? std::min<int64_t>(most, 512) : 512;
  const std::unique_ptr<Classification> classifier = Classification::open_finished(config);
  const Graph graph = classifier->loss(GraphRole::kEval, 0);
  const std::string& name = graph.name();
  const std::unique_ptr<Executor> executor = load_graph(graph, options, *open_weights(folder));
  const EvalOutputs outputs{
      .scalar = [&](const std::string& output) { return output_as<float>(*executor, name, output)[0]; },
      .ints =
          [&](const std::string& output) {
            const auto values = output_as<int32_t>(*executor, name, output);
            return std::vector<int32_t>(values.begin(), values.end());
          }};
  ClassifierScores scores{.metrics = classifier->metrics()};
  std::vector<std::vector<double>> numbers;
  for (int64_t i = 0; i < classifier->validation_batches(); ++i) {
    const Batch texts = classifier->batch(DataSplit::kValidation, i);
    write_inputs(*executor, name, texts);
    executor->run(name);
    const std::vector<double> measured = classifier->measure(texts, outputs);
    numbers.resize(measured.size());
    for (size_t n = 0; n < measured.size(); ++n) numbers[n].push_back(measured[n]);
    scores.texts += texts.target_count;
  }
  scores.values = classifier->join(numbers, scores.texts);
  return scores;
}

}  // namespace octet
