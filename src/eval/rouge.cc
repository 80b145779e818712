#include "eval/rouge.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "eval/porter_stemmer.h"

namespace octet {
namespace {

using Words = std::vector<int32_t>;  // by number

// Numbers words, so that comparing them is cheap.
class WordNumbers {
 public:
  explicit WordNumbers(bool stem) : stem_(stem) {}

  Words words(std::string_view text) {
    Words out;
    std::string word;
    const auto end_word = [&] {
      if (word.size() > 3 && stem_) word = porter_stem(word);
      if (!word.empty()) out.push_back(numbers_.try_emplace(word, static_cast<int32_t>(numbers_.size())).first->second);
      word.clear();
    };
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (letter || (c >= '0' && c <= '9')) {
        word += letter ? static_cast<char>(c | 0x20) : c;
      } else if (text.substr(i).starts_with("\u212A")) {  // KELVIN SIGN, whose lower case is k
        word += 'k', i += 2;
      } else if (text.substr(i).starts_with("\u0130")) {  // I with a dot above: i and a mark
        word += 'i', i += 1;
        end_word();
      } else {
        end_word();
      }
    }
    end_word();
    return out;
  }

 private:
  bool stem_;
  std::unordered_map<std::string, int32_t> numbers_;
};

RougeScore score(size_t hits, size_t predicted, size_t wanted) {
  RougeScore out{.precision = static_cast<double>(hits) / static_cast<double>(std::max<size_t>(predicted, 1)),
                 .recall = static_cast<double>(hits) / static_cast<double>(std::max<size_t>(wanted, 1))};
  const double sum = out.precision + out.recall;
  if (sum > 0) out.f = 2 * out.precision * out.recall / sum;
  return out;
}

RougeScore score_ngrams(const Words& target, const Words& prediction, size_t n) {
  const auto count = [n](const Words& words) {
    std::map<Words, size_t> counts;
    for (size_t i = 0; i + n <= words.size(); ++i)
      ++counts[Words(words.begin() + static_cast<ptrdiff_t>(i), words.begin() + static_cast<ptrdiff_t>(i + n))];
    return counts;
  };
  const auto wanted = count(target), predicted = count(prediction);
  size_t hits = 0;
  for (const auto& [ngram, times] : wanted)
    if (const auto found = predicted.find(ngram); found != predicted.end()) hits += std::min(times, found->second);
  const auto total = [n](const Words& words) { return words.size() < n ? 0 : words.size() - n + 1; };
  return score(hits, total(prediction), total(target));
}

// Lengths of longest common subsequences of the first i words of a and the first j of b, [i * (b.size() + 1) + j].
std::vector<uint32_t> common_lengths(const Words& a, const Words& b) {
  const size_t width = b.size() + 1;
  std::vector<uint32_t> lengths((a.size() + 1) * width);
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j < width; ++j)
      lengths[i * width + j] = a[i - 1] == b[j - 1]
                                   ? lengths[(i - 1) * width + j - 1] + 1
                                   : std::max(lengths[(i - 1) * width + j], lengths[i * width + j - 1]);
  return lengths;
}

// Places in `a` of one longest common subsequence: the one that rouge-score finds.
void add_common_places(const Words& a, const Words& b, std::set<size_t>& places) {
  const std::vector<uint32_t> lengths = common_lengths(a, b);
  const size_t width = b.size() + 1;
  for (size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      places.insert(i - 1);
      --i, --j;
    } else if (lengths[i * width + j - 1] > lengths[(i - 1) * width + j]) {
      --j;
    } else {
      --i;
    }
  }
}

// Of summaries of sentences: words of a target's sentence that some sentence of the prediction has in order, each as
// often as both summaries have it.
RougeScore score_sentences(const std::vector<Words>& target, const std::vector<Words>& prediction) {
  std::unordered_map<int32_t, int64_t> wanted, predicted;
  size_t wanted_count = 0, predicted_count = 0, hits = 0;
  for (const Words& sentence : target)
    for (const int32_t word : sentence) ++wanted[word], ++wanted_count;
  for (const Words& sentence : prediction)
    for (const int32_t word : sentence) ++predicted[word], ++predicted_count;
  for (const Words& sentence : target) {
    std::set<size_t> places;
    for (const Words& other : prediction) add_common_places(sentence, other, places);
    for (const size_t place : places) {
      const int32_t word = sentence[place];
      if (wanted[word] <= 0 || predicted[word] <= 0) continue;
      ++hits, --wanted[word], --predicted[word];
    }
  }
  return score(hits, predicted_count, wanted_count);
}

std::vector<Words> sentences(std::string_view text, WordNumbers& numbers) {
  std::vector<Words> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out.push_back(numbers.words(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

RougeScores rouge(std::string_view target, std::string_view prediction, bool stem) {
  WordNumbers numbers(stem);
  const Words wanted = numbers.words(target), predicted = numbers.words(prediction);
  return {.rouge1 = score_ngrams(wanted, predicted, 1),
          .rouge2 = score_ngrams(wanted, predicted, 2),
          .rouge_l = score(common_lengths(wanted, predicted).back(), predicted.size(), wanted.size()),
          .rouge_lsum = score_sentences(sentences(target, numbers), sentences(prediction, numbers))};
}

std::string rouge_json(const RougeScores& plain, const RougeScores& stem) {
  nlohmann::ordered_json json;
  for (const auto& [name, scores] : {std::pair("plain", &plain), {"stem", &stem}})
    for (const auto& [kind, one] : {std::pair("rouge1", &scores->rouge1),
                                    {"rouge2", &scores->rouge2},
                                    {"rougeL", &scores->rouge_l},
                                    {"rougeLsum", &scores->rouge_lsum}})
      json[name][kind] = {one->precision, one->recall, one->f};
  return json.dump();
}

}  // namespace octet
