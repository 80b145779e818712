#include "corpus/decontaminate.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "corpus/json_line.h"
#include "corpus/lines.h"
#include "corpus/words.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// Hashes of the n-grams of words, by a sum that rolls: the sum of hash[i + j] * kBase^(n - 1 - j), mixed.
class RollingHash {
 public:
  explicit RollingHash(int64_t n) : n_(n) {
    for (int64_t i = 0; i < n; ++i) leading_ *= kBase;
  }
  template <typename Body>
  void each(const std::vector<uint64_t>& words, Body body) const {
    uint64_t sum = 0;
    for (int64_t i = 0; i < std::ssize(words); ++i) {
      const auto at = static_cast<size_t>(i);
      sum = sum * kBase + words[at];
      if (i >= n_) sum -= leading_ * words[at - static_cast<size_t>(n_)];
      if (i + 1 >= n_) body(mix_bits(sum));
    }
  }

 private:
  static constexpr uint64_t kBase = 0x9e3779b97f4a7c15ull;
  int64_t n_;
  uint64_t leading_ = 1;  // kBase^n
};

void each_string(const Json& value, const std::vector<std::string>& keys, bool wanted,
                 const std::function<void(const std::string&)>& body) {
  if (value.is_string() && wanted) body(value.get_ref<const std::string&>());
  if (value.is_array())
    for (const Json& one : value) each_string(one, keys, wanted, body);
  if (value.is_object())
    for (const auto& [key, one] : value.items())
      each_string(one, keys, wanted || std::ranges::find(keys, key) != keys.end(), body);
}

}  // namespace

// The n-grams of all test sets, with where each stands first.
class TestIndex {
 public:
  struct Place {
    int32_t test = 0;
    int64_t line = 0;
  };
  explicit TestIndex(const DecontaminateOptions& options) : rolling_(options.words) {
    for (const TestSet& test : options.tests) {
      TestSetFacts& facts = facts_.emplace_back(TestSetFacts{.name = test.name});
      for (const CorpusFile& file : list_corpus(test.files)) read(file, options, facts);
      check(facts.ngrams > 0, ErrorCode::kInvalidArgument,
            "test set {}: none of its {} texts has {} words{}: lower --ngram, or name other --test-key", test.name,
            facts.texts, options.words, options.keys.empty() ? "" : " under the keys of --test-key");
    }
    maybe_.assign(size_t{1} << std::clamp(64 - __builtin_clzll(places_.size() * 16), 16, 28), false);
    for (const auto& [hash, place] : places_) maybe_[hash & (maybe_.size() - 1)] = true;
  }

  const Place* find(uint64_t ngram) const {
    if (!maybe_[ngram & (maybe_.size() - 1)]) return nullptr;  // most are in no test set
    const auto found = places_.find(ngram);
    return found == places_.end() ? nullptr : &found->second;
  }
  uint64_t checksum() const {  // of any order
    uint64_t sum = 0;
    for (const auto& [hash, place] : places_) sum += mix_bits(hash);
    return sum;
  }
  const RollingHash& rolling() const { return rolling_; }
  const std::vector<TestSetFacts>& facts() const { return facts_; }

 private:
  void read(const CorpusFile& file, const DecontaminateOptions& options, TestSetFacts& facts) {
    std::vector<uint64_t> words;
    int64_t line = 0;
    const auto add = [&](const std::string& text) {
      ++facts.texts;
      hash_words(text, words);
      if (std::ssize(words) < options.words) ++facts.too_short;
      rolling_.each(words, [&](uint64_t ngram) {
        facts.ngrams += places_.try_emplace(ngram, Place{static_cast<int32_t>(facts_.size() - 1), line}).second;
      });
    };
    CorpusReader reader = open_json_lines(file, options.lines.longest_line);
    for (CorpusBatch batch; reader.next(batch);)
      each_json_line(batch, file.path, options.lines.longest_line, [&](std::string_view text, int64_t number) {
        line = number;
        const size_t begin = text.find_first_not_of(" \t\r");
        if (text[begin] != '{' && text[begin] != '[') return add(std::string(text));
        each_string(parse_json<Json>(std::string(text), fmt::format("{}:{}", file.path, number)), options.keys,
                    options.keys.empty(), add);
      });
  }

  RollingHash rolling_;
  std::vector<TestSetFacts> facts_;
  std::unordered_map<uint64_t, Place> places_;
  std::vector<bool> maybe_;
};

namespace {

class TestFilter final : public DocumentFilter {
 public:
  TestFilter(const TestIndex& index, int64_t matches) : index_(index), matches_(matches) {}

  Verdict judge(std::string_view& text, LineCounts& counts) override {
    hash_words(text, words_);
    shared_.clear();
    const TestIndex::Place* first = nullptr;
    std::vector<bool> tests(index_.facts().size());
    index_.rolling().each(words_, [&](uint64_t ngram) {
      const TestIndex::Place* place = index_.find(ngram);
      if (place == nullptr) return;
      if (first == nullptr) first = place;
      shared_.push_back(ngram);
      tests[static_cast<size_t>(place->test)] = true;
    });
    std::ranges::sort(shared_);
    const auto different = std::unique(shared_.begin(), shared_.end()) - shared_.begin();
    if (first == nullptr || different < matches_) return {};
    for (size_t i = 0; i < tests.size(); ++i)
      if (tests[i]) ++counts["test." + index_.facts()[i].name];
    std::string fields = ", \"test\": ";
    append_json_string(fields, index_.facts()[static_cast<size_t>(first->test)].name);
    return {.reason = "contaminated",
            .fields = fmt::format("{}, \"test_line\": {}, \"matches\": {}", fields, first->line, different)};
  }

 private:
  const TestIndex& index_;
  int64_t matches_;
  std::vector<uint64_t> words_, shared_;
};

std::string job_of(const DecontaminateOptions& options, const TestIndex& index) {
  Json tests = Json::array();
  for (const TestSet& test : options.tests) tests.push_back({{"name", test.name}, {"files", test.files}});
  return Json{{"command", "data decontaminate"},
              {"tests", tests},
              {"tests_checksum", fmt::format("{:016x}", index.checksum())},
              {"test_keys", options.keys},
              {"words", options.words},
              {"matches", options.matches}}
      .dump();
}

}  // namespace

Decontaminate::Decontaminate(DecontaminateOptions options)
    : options_(std::move(options)),
      index_(std::make_unique<TestIndex>(options_)),
      job_(options_.lines, job_of(options_, *index_),
           [this] { return std::make_unique<TestFilter>(*index_, options_.matches); }) {}
Decontaminate::~Decontaminate() = default;

const std::vector<TestSetFacts>& Decontaminate::tests() const { return index_->facts(); }

}  // namespace octet
