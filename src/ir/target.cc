// Target values made without a device, and their text form: one "key: value" a line, '#' comments.
#include "ir/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"
#include "base/file.h"

namespace octet {
namespace {

// One row per scalar field: the text form, reading and the list of known keys derive from it.
struct IntField {
  const char* key;
  int64_t Target::*member;
};
struct DoubleField {
  const char* key;
  double Target::*member;
};
struct BoolField {
  const char* key;
  bool Target::*member;
};
constexpr BoolField kBools[] = {{"fp8_tn_only", &Target::fp8_tn_only},
                                {"int8_products", &Target::int8_products},
                                {"prefer_recompute", &Target::prefer_recompute}};
constexpr IntField kInts[] = {{"vocab_multiple", &Target::vocab_multiple},
                              {"fp8_alignment", &Target::fp8_alignment},
                              {"buffer_alignment", &Target::buffer_alignment},
                              {"workspace_bytes", &Target::workspace_bytes},
                              {"memory_bytes", &Target::memory_bytes}};
constexpr DoubleField kDoubles[] = {{"bytes_per_second", &Target::bytes_per_second},
                                    {"f32_flops", &Target::f32_flops},
                                    {"bf16_flops", &Target::bf16_flops},
                                    {"fp8_flops", &Target::fp8_flops}};

std::string_view trim(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> list;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t", at)) != std::string_view::npos) {
    size_t end = std::min(text.find_first_of(" \t", at), text.size());
    list.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return list;
}

class TargetReader {
 public:
  explicit TargetReader(const std::string& path) : path_(path) {}

  void read_line(std::string_view line) {
    ++line_;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) return;
    size_t colon = line.find(':');
    check(colon != std::string_view::npos, ErrorCode::kInvalidArgument, "{}:{}: '{}' (want \"key: value\")", path_,
          line_, line);
    read_field(std::string(trim(line.substr(0, colon))), trim(line.substr(colon + 1)));
  }

  Target target;

 private:
  template <typename T>
  T number(std::string_view text) const {
    T value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc() && end == text.data() + text.size(), ErrorCode::kInvalidArgument,
          "{}:{}: '{}' is not a number in range", path_, line_, text);
    return value;
  }

  int64_t dim(std::string_view text) const {
    const auto value = number<int64_t>(text);
    check(value > 0, ErrorCode::kInvalidArgument, "{}:{}: {} (want > 0)", path_, line_, value);
    return value;
  }

  bool boolean(std::string_view text) const {
    check(text == "true" || text == "false", ErrorCode::kInvalidArgument, "{}:{}: '{}' (want true or false)", path_,
          line_, text);
    return text == "true";
  }

  void read_fusion(std::string_view rule) {
    try {
      allow_fusions(target, std::string(rule));
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}", path_, line_, error.message());
    }
  }

  void read_field(const std::string& key, std::string_view value) {
    std::vector<std::string> known = {"name", "device", "fuse", "timing"};
    for (const BoolField& field : kBools) {
      known.emplace_back(field.key);
      if (key == field.key) {
        target.*field.member = boolean(value);
        return;
      }
    }
    for (const IntField& field : kInts) {
      known.emplace_back(field.key);
      if (key == field.key) {
        target.*field.member = number<int64_t>(value);
        return;
      }
    }
    for (const DoubleField& field : kDoubles) {
      known.emplace_back(field.key);
      if (key == field.key) {
        target.*field.member = number<double>(value);
        return;
      }
    }
    if (key == "name") {
      target.name = value;
    } else if (key == "device") {
      check(value == "cpu" || value == "cuda", ErrorCode::kInvalidArgument, "{}:{}: '{}' (want cpu or cuda)", path_,
            line_, value);
      target.device = value == "cuda" ? Device::kCuda : Device::kCpu;
    } else if (key == "fuse") {
      read_fusion(value);
    } else if (key == "timing") {
      std::vector<std::string> parts = words(value);
      const bool of_roles =
          parts.size() == 6 && !parts[5].empty() && std::isalpha(static_cast<unsigned char>(parts[5][0]));
      check(parts.size() == 6 && !of_roles, ErrorCode::kInvalidArgument,
            "{}:{}: '{}' (want precision tokens out in linears seconds{})", path_, line_, value,
            of_roles ? "; this row is of an older format: make it again with octet-bench timings" : "");
      target.timings.push_back(
          {parts[0], dim(parts[1]), dim(parts[2]), dim(parts[3]), dim(parts[4]), number<double>(parts[5])});
    } else {
      fail(ErrorCode::kInvalidArgument, "{}:{}: unknown key '{}'{}", path_, line_, key,
           if_near(key, known, " (nearest: {})"));
    }
  }

  const std::string& path_;
  int line_ = 0;
};

}  // namespace

const char* device_name(Device device) { return device == Device::kCuda ? "cuda" : "cpu"; }

void Target::allow(Producer producer, std::initializer_list<FusionPart> parts) {
  for (FusionPart part : parts) fusions[static_cast<size_t>(producer)] |= static_cast<uint32_t>(part);
}

namespace {

// The index of this name among names(0) .. names(count - 1).
template <typename Name>
int one_of(const char* what, const std::string& word, int count, const Name& name) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(i));
  const auto found = std::find(names.begin(), names.end(), word);
  check(found != names.end(), ErrorCode::kInvalidArgument, "'{}' is no {}{}", word, what,
        if_near(word, names, " (nearest: {})"));
  return static_cast<int>(found - names.begin());
}

}  // namespace

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

Target interpreter_target() { return {.name = "interpreter", .int8_products = true, .buffer_alignment = 8}; }

Target read_target(const std::string& path) {
  std::string text = read_file(path, int64_t{16} << 20);
  TargetReader reader(path);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    reader.read_line(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  return reader.target;
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
  for (const BoolField& field : kBools) text += fmt::format("{}: {}\n", field.key, target.*field.member);
  for (const IntField& field : kInts) text += fmt::format("{}: {}\n", field.key, target.*field.member);
  for (const DoubleField& field : kDoubles) text += fmt::format("{}: {}\n", field.key, target.*field.member);
  for (const LinearTiming& timing : target.timings) text += timing_text(timing);
  return text;
}

}  // namespace octet
