// See clean.h.
#include "corpus/clean.h"

#include "base/error.h"
#include "base/json.h"
#include "corpus/mask_personal.h"
#include "corpus/repair_text.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

std::string job_of(CleanOptions& options) {
  Json rules;
  const SettingsTable table = options.rules.table();
  for (const std::string& name : table.names()) rules[name] = table.get(name);
  return Json{{"command", "data clean"},
              {"repair", options.repair},
              {"languages", options.languages},
              {"language_model", options.language_model},
              {"language_threshold", options.language_threshold},
              {"quality_model", options.quality_model},
              {"quality_label", options.quality_label},
              {"quality_threshold", options.quality_threshold},
              {"mask", options.mask},
              {"rules", rules}}
      .dump();
}

// Cleans documents; one for each worker.
class Cleaner final : public DocumentFilter {
 public:
  Cleaner(const CleanOptions& options, const TextClassifier* language, const TextClassifier* quality)
      : options_(options), language_(language), quality_(quality), checker_(options.rules), masks_(options.mask) {}

  Verdict judge(std::string_view& text, LineCounts& counts) override {
    if (options_.repair) {
      note(repair_text(text, repaired_), counts);
      text = repaired_;
    }
    TextClass seen;
    Verdict verdict{.reason = reason_to_drop(text, seen)};
    if (seen.score >= 0 && (verdict.reason == "language" || verdict.reason == "quality"))
      verdict.fields = fmt::format(", \"class\": \"{}\", \"score\": {:.6g}", seen.name, seen.score);
    if (!verdict.reason.empty()) return verdict;
    MaskCounts masked;
    if (mask_personal(masks_, text, masked_, masked)) text = masked_;
    for (const auto& [name, count] :
         {std::pair{"masked.email", masked.emails}, {"masked.ip", masked.ips}, {"masked.phone", masked.phones}})
      if (count > 0) counts[name] += count;
    return {};
  }

 private:
  // May leave other text in `text`.
  std::string_view reason_to_drop(std::string_view& text, TextClass& seen) {
    if (text.empty()) return "empty";
    if (language_ != nullptr) {
      seen = language_->best(text);
      if (std::ranges::find(options_.languages, seen.name) == options_.languages.end() ||
          seen.score < options_.language_threshold)
        return "language";
    }
    const std::string_view reason = checker_.check(text, ruled_);
    if (!reason.empty() || quality_ == nullptr) return reason;
    seen = {options_.quality_label, quality_->score(text, options_.quality_label)};
    return seen.score < options_.quality_threshold ? "quality" : "";
  }
  static void note(const TextRepairs& repairs, LineCounts& counts) {
    for (const auto& [name, done] : {std::pair{"repaired.mojibake", repairs.mojibake},
                                     {"repaired.invalid_utf8", repairs.invalid},
                                     {"repaired.controls", repairs.controls},
                                     {"repaired.white_space", repairs.white_space},
                                     {"repaired.nfc", repairs.composed}})
      if (done) ++counts[name];
  }

  const CleanOptions& options_;
  const TextClassifier *language_, *quality_;
  RuleChecker checker_;
  PersonalMasks masks_;
  std::string repaired_, ruled_, masked_;
};

CleanOptions checked(CleanOptions options) {
  check(options.language_model.empty() || !options.languages.empty(), ErrorCode::kInvalidArgument,
        "--language-model {}: --language names the languages that stay", options.language_model);
  const PersonalMasks masks(options.mask);  // an error for what it does not know
  return options;
}

}  // namespace

Clean::Clean(CleanOptions options)
    : options_(checked(std::move(options))), job_(options_.lines, job_of(options_), [this] {
        return std::make_unique<Cleaner>(options_, language_.get(), quality_.get());
      }) {
  if (!options_.languages.empty())
    language_ = options_.language_model.empty() ? open_cld2() : open_fasttext(options_.language_model);
  if (!options_.quality_model.empty()) {
    quality_ = open_fasttext(options_.quality_model);
    quality_->score("a", options_.quality_label);  // an error for a class that it does not have
  }
}

}  // namespace octet
