// ROUGE (Lin, 2004) of a prediction against a target, as the package rouge-score counts it: words are runs of ASCII
// letters and digits of the lower-cased text, of rougeLsum each line is a sentence.
#pragma once

#include <string>
#include <string_view>

namespace octet {

struct RougeScore {
  double precision = 0, recall = 0, f = 0;
};

struct RougeScores {
  RougeScore rouge1, rouge2, rouge_l, rouge_lsum;
};

// `stem`: words of more than three letters by their stems (eval/porter_stemmer.h).
RougeScores rouge(std::string_view target, std::string_view prediction, bool stem);

// {"plain": {"rouge1": [precision, recall, f], "rouge2", "rougeL", "rougeLsum"}, "stem": {...}}.
std::string rouge_json(const RougeScores& plain, const RougeScores& stem);

}  // namespace octet
