// Target values made without a device, and their text form: one "key: value" a line, '#' comments.
#include "ir/target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "ir/text_words.h"

namespace octet {
namespace {

constexpr std::pair<std::string_view, std::string_view> kPublished[] = {
#include "target_texts.inc"
};

// fn(key, field) for every scalar field: the text form, reading and the list of known keys derive from it.
template <typename AnyTarget, typename Fn>
void for_each_field(AnyTarget& target, const Fn& fn) {
  fn("fp8_tn_only", target.fp8_tn_only);
  fn("prefer_recompute", target.prefer_recompute);
  fn("vocab_multiple", target.vocab_multiple);
  fn("fp8_alignment", target.fp8_alignment);
  fn("buffer_alignment", target.buffer_alignment);
  fn("workspace_bytes", target.workspace_bytes);
  fn("memory_bytes", target.memory_bytes);
  fn("bytes_per_second", target.bytes_per_second);
  fn("link_bytes_per_second", target.link_bytes_per_second);
  fn("link_latency", target.link_latency);
  fn("node_devices", target.node_devices);
  fn("node_link_bytes_per_second", target.node_link_bytes_per_second);
  fn("node_link_latency", target.node_link_latency);
  fn("f32_flops", target.f32_flops);
  fn("bf16_flops", target.bf16_flops);
  fn("fp8_flops", target.fp8_flops);
  fn("watts", target.watts);
  auto& step = target.step;
  fn("step_bf16_flops", step.bf16);
  fn("step_fp8_flops", step.fp8);
  fn("step_fp8_block_flops", step.fp8_block);
  fn("step_attention_forward_flops", step.attention_forward);
  fn("step_attention_backward_flops", step.attention_backward);
  fn("step_dropout_forward_flops", step.dropout_forward);
  fn("step_dropout_backward_flops", step.dropout_backward);
  fn("step_byte_dropout_forward_flops", step.byte_dropout_forward);
  fn("step_byte_dropout_backward_flops", step.byte_dropout_backward);
  fn("step_bytes_per_second", step.bytes_per_second);
  fn("step_kernel_seconds", step.kernel_seconds);
  fn("step_beside", step.beside);
  fn("step_seconds", step.step_seconds);
  auto& limits = target.limits;
  fn("rank_sum_bytes", limits.rank_sum_bytes);
  fn("exchange_latencies", limits.exchange_latencies);
  fn("router_tokens", limits.router_tokens);
  fn("router_choices", limits.router_choices);
  fn("addend_columns", limits.addend_columns);
  fn("update_params", limits.update_params);
  fn("update_scales", limits.update_scales);
  fn("update_maxima", limits.update_maxima);
  auto& traits = target.traits;
  fn("block_size", traits.block_size);
  fn("steps_ahead", traits.steps_ahead);
  fn("captures_graphs", traits.captures_graphs);
  fn("overlaps_transfers", traits.overlaps_transfers);
  fn("library_masks", traits.library_masks);
  fn("shares_memory", traits.shares_memory);
  fn("memory_fraction", traits.memory_fraction);
  fn("memory_reserve", traits.memory_reserve);
  fn("least_bucket", traits.least_bucket);
  fn("buckets_per_doubling", traits.buckets_per_doubling);
  fn("bucket_multiple", traits.bucket_multiple);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

void read_value(std::string_view text, bool& value) {
  check(text == "true" || text == "false", ErrorCode::kInvalidArgument, "'{}' (want true or false)", text);
  value = text == "true";
}

template <typename Number>
void read_value(std::string_view text, Number& value) {
  check(text::read_number(text, value), ErrorCode::kInvalidArgument, "'{}' is not a number in range", text);
}

int64_t read_dim(std::string_view text) {
  int64_t value = 0;
  read_value(text, value);
  check(value > 0, ErrorCode::kInvalidArgument, "{} (want > 0)", value);
  return value;
}

void read_field(Target& target, const std::string& key, const std::string& value) {
  std::vector<std::string> known = {"name", "device", "fuse", "integer_product", "timing"};
  bool found = false;
  for_each_field(target, [&](const char* name, auto& field) {
    known.emplace_back(name);
    if (key == name) read_value(value, field), found = true;
  });
  if (found) return;
  if (key == "name") {
    target.name = value;
  } else if (key == "device") {
    check(value == "cpu" || value == "cuda", ErrorCode::kInvalidArgument, "'{}' (want cpu or cuda)", value);
    target.device = value == "cuda" ? Device::kCuda : Device::kCpu;
    target.traits = value == "cuda" ? kGpuTraits : DeviceTraits();
  } else if (key == "fuse") {
    allow_fusions(target, value);
  } else if (key == "integer_product") {
    const std::vector<std::string> parts = words(value);
    check(parts.size() == 2 || parts.size() == 5, ErrorCode::kInvalidArgument,
          "'{}' (want the types of x and of codes, or these and order rows columns)", value);
    IntegerProduct product{.x = parse_dtype(parts[0]), .codes = parse_dtype(parts[1])};
    if (parts.size() == 5)
      product.order = parts[2], product.rows = read_dim(parts[3]), product.cols = read_dim(parts[4]);
    target.integer_products.push_back(std::move(product));
  } else if (key == "timing") {
    const std::vector<std::string> parts = words(value);
    const bool of_roles = parts.size() == 6 && std::isalpha(static_cast<unsigned char>(parts[5][0]));
    check(parts.size() == 6 && !of_roles, ErrorCode::kInvalidArgument,
          "'{}' (want precision tokens out in linears seconds{})", value,
          of_roles ? "; this row is of an older format: make it again with octet-bench timings" : "");
    LinearTiming timing{parts[0], read_dim(parts[1]), read_dim(parts[2]), read_dim(parts[3]), read_dim(parts[4])};
    read_value(parts[5], timing.seconds);
    target.timings.push_back(std::move(timing));
  } else {
    fail(ErrorCode::kInvalidArgument, "unknown key '{}'{}", key, if_near(key, known, " (nearest: {})"));
  }
}

void read_line(Target& target, std::string_view line) {
  line = text::trim(line.substr(0, line.find('#')));
  if (line.empty()) return;
  size_t colon = line.find(':');
  check(colon != std::string_view::npos, ErrorCode::kInvalidArgument, "'{}' (want \"key: value\")", line);
  read_field(target, std::string(text::trim(line.substr(0, colon))), std::string(text::trim(line.substr(colon + 1))));
}

// The index of this name among names(0) .. names(count - 1).
template <typename Name>
int one_of(const char* what, const std::string& word, int count, const Name& name) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(i));
  const auto found = std::ranges::find(names, word);
  check(found != names.end(), ErrorCode::kInvalidArgument, "'{}' is no {}{}", word, what,
        if_near(word, names, " (nearest: {})"));
  return static_cast<int>(found - names.begin());
}

}  // namespace

const char* device_name(Device device) { return device == Device::kCuda ? "cuda" : "cpu"; }

void Target::allow(Producer producer, std::initializer_list<FusionPart> parts) {
  for (FusionPart part : parts) fusions[static_cast<size_t>(producer)] |= static_cast<uint32_t>(part);
}

void allow_fusions(Target& target, const std::string& rule) {
  const std::vector<std::string> list = words(rule);
  check(list.size() >= 2, ErrorCode::kInvalidArgument, "'{}' (want a producer of fusions and its parts)", rule);
  const auto producer = static_cast<Producer>(one_of("producer of fusions", list[0], kProducers,
                                                     [](int i) { return producer_name(static_cast<Producer>(i)); }));
  for (size_t i = 1; i < list.size(); ++i) {
    const int bit = one_of("part of fusions", list[i], kFusionParts,
                           [](int b) { return part_name(static_cast<FusionPart>(1u << b)); });
    target.allow(producer, {static_cast<FusionPart>(1u << bit)});
  }
}

const IntegerProduct* Target::find_product(DType x, DType codes) const {
  const auto found = std::ranges::find_if(
      integer_products, [&](const IntegerProduct& product) { return product.x == x && product.codes == codes; });
  return found == integer_products.end() ? nullptr : &*found;
}

Target interpreter_target() {
  Target target{.name = "interpreter", .buffer_alignment = 8};
  for (DType x : {DType::kI8, DType::kE4M3, DType::kBF16})
    for (DType codes : {DType::kI8, DType::kI4}) target.integer_products.push_back({.x = x, .codes = codes});
  return target;
}

Target read_target(const std::string& path) { return parse_target(read_file(path, int64_t{16} << 20), path); }

std::vector<std::string> published_targets() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kPublished) names.emplace_back(name);
  return names;
}

Target published_target(const std::string& name) {
  for (const auto& [known, text] : kPublished)
    if (name == known) return parse_target(std::string(text), fmt::format("target {}", name));
  fail(ErrorCode::kNotFound, "target {} (want {})", name, fmt::join(published_targets(), ", "));
}

Target parse_target(const std::string& content, const std::string& where) {
  std::istringstream text(content);
  std::vector<std::pair<int, std::string>> lines;  // with their numbers
  for (std::string line; std::getline(text, line);) lines.emplace_back(static_cast<int>(lines.size()) + 1, line);
  // The device first, wherever it stands: other keys change its traits.
  std::stable_partition(lines.begin(), lines.end(),
                        [](const auto& line) { return text::trim(line.second).starts_with("device"); });
  Target target;
  for (const auto& [number, line] : lines) {
    try {
      read_line(target, line);
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}", where, number, error.message());
    }
  }
  return target;
}

std::string timing_text(const LinearTiming& t) {
  return fmt::format("timing: {} {} {} {} {} {}\n", t.precision, t.tokens, t.out, t.in, t.linears, t.seconds);
}

std::string to_text(const Target& target) {
  std::string text = fmt::format("name: {}\ndevice: {}\n", target.name, device_name(target.device));
  for (int p = 0; p < kProducers; ++p) {
    const auto producer = static_cast<Producer>(p);
    if (!target.fuses(producer)) continue;
    text += fmt::format("fuse: {}", producer_name(producer));
    for (int bit = 0; bit < kFusionParts; ++bit) {
      const auto part = static_cast<FusionPart>(1u << bit);
      if (target.fuses(producer, part)) text += fmt::format(" {}", part_name(part));
    }
    text += "\n";
  }
  for_each_field(target, [&](const char* key, const auto& field) { text += fmt::format("{}: {}\n", key, field); });
  for (const IntegerProduct& p : target.integer_products) {
    text += fmt::format("integer_product: {} {}", dtype_name(p.x), dtype_name(p.codes));
    text += p.order.empty() ? "\n" : fmt::format(" {} {} {}\n", p.order, p.rows, p.cols);
  }
  for (const LinearTiming& timing : target.timings) text += timing_text(timing);
  return text;
}

}  // namespace octet
