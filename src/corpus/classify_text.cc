// See classify_text.h.
#include "corpus/classify_text.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"

#ifdef OCTET_FASTTEXT
#include <fasttext/fasttext.h>
#endif
#ifdef OCTET_CLD2
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>
#endif

namespace octet {
namespace {

#ifdef OCTET_FASTTEXT
constexpr std::string_view kLabel = "__label__";

class FastTextClassifier : public TextClassifier {
 public:
  explicit FastTextClassifier(const std::string& path) {
    file_size(path);  // an error of ours where it cannot be read
    try {
      model_.loadModel(path);
    } catch (const std::exception& error) {
      fail(ErrorCode::kCorrupt, "{}: is no fastText model: {}", path, error.what());
    }
    check(model_.getDictionary()->nlabels() > 0, ErrorCode::kInvalidArgument,
          "{}: a fastText model of word vectors, without classes", path);
  }
  TextClass best(std::string_view text) const override {
    const auto found = predict(text, 1);
    return found.empty() ? TextClass{} : TextClass{strip(found[0].second), found[0].first};
  }
  double score(std::string_view text, const std::string& name) const override {
    for (const auto& [score, label] : predict(text, model_.getDictionary()->nlabels()))
      if (label == name || strip(label) == name) return score;
    fail(ErrorCode::kInvalidArgument, "the model has no class '{}', but {} others", name,
         model_.getDictionary()->nlabels());
  }

 private:
  static std::string strip(const std::string& label) {
    return label.starts_with(kLabel) ? label.substr(kLabel.size()) : label;
  }
  // A text is one line to fastText.
  std::vector<std::pair<fasttext::real, std::string>> predict(std::string_view text, int count) const {
    std::string line(text);
    std::ranges::replace(line, '\n', ' ');
    std::istringstream in(std::move(line) + "\n");
    std::vector<std::pair<fasttext::real, std::string>> found;
    model_.predictLine(in, found, count, 0);
    for (auto& [score, label] : found) score = std::min<fasttext::real>(score, 1);
    return found;
  }
  fasttext::FastText model_;
};
#endif

#ifdef OCTET_CLD2
class Cld2Classifier : public TextClassifier {
 public:
  TextClass best(std::string_view text) const override { return detect(text)[0]; }
  double score(std::string_view text, const std::string& name) const override {
    for (const TextClass& each : detect(text))
      if (each.name == name) return each.score;
    return 0;
  }

 private:
  // The three most frequent languages; the score is the share of the text.
  static std::vector<TextClass> detect(std::string_view text) {
    CLD2::Language languages[3];
    int percent[3], bytes = 0, valid = 0;
    double scores[3];
    bool reliable = false;
    const CLD2::CLDHints hints{nullptr, nullptr, CLD2::UNKNOWN_ENCODING, CLD2::UNKNOWN_LANGUAGE};
    CLD2::ExtDetectLanguageSummaryCheckUTF8(text.data(), static_cast<int>(std::min<size_t>(text.size(), 1 << 24)), true,
                                            &hints, 0, languages, percent, scores, nullptr, &bytes, &reliable, &valid);
    std::vector<TextClass> found;
    for (int i = 0; i < 3; ++i)
      found.push_back(
          {languages[i] == CLD2::UNKNOWN_LANGUAGE ? "" : CLD2::LanguageCode(languages[i]), percent[i] / 100.0});
    return found;
  }
};
#endif

}  // namespace

bool has_fasttext() {
#ifdef OCTET_FASTTEXT
  return true;
#else
  return false;
#endif
}

bool has_cld2() {
#ifdef OCTET_CLD2
  return true;
#else
  return false;
#endif
}

std::unique_ptr<TextClassifier> open_fasttext([[maybe_unused]] const std::string& path) {
#ifdef OCTET_FASTTEXT
  return std::make_unique<FastTextClassifier>(path);
#else
  fail(ErrorCode::kUnsupported, "{}: this build has no fastText: install libfasttext-dev and build again", path);
#endif
}

std::unique_ptr<TextClassifier> open_cld2() {
#ifdef OCTET_CLD2
  return std::make_unique<Cld2Classifier>();
#else
  fail(ErrorCode::kUnsupported,
       "this build has no CLD2: install libcld2-dev and build again, or name a model (--language-model lid.176.bin)");
#endif
}

}  // namespace octet
