// Porter's stemmer ("An algorithm for suffix stripping", 1980) with the extensions of NLTK's PorterStemmer, which ROUGE
// by rouge-score uses.
#pragma once

#include <string>

namespace octet {

// Of a word of lower-case ASCII letters and digits.
std::string porter_stem(std::string word);

}  // namespace octet
