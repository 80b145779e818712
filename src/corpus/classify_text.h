// Classes of texts: by a fastText model that the user names (lid.176.bin for languages, DCLM's for quality), or
// languages by CLD2, which needs no model. Each where the build has its library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace octet {

struct TextClass {
  std::string name;  // without "__label__"; of languages a code such as "en"; "": none
  double score = 0;  // 0 to 1
};

// Any thread may ask.
class TextClassifier {
 public:
  virtual ~TextClassifier() = default;
  virtual TextClass best(std::string_view text) const = 0;
  virtual double score(std::string_view text, const std::string& name) const = 0;  // of one class
};

bool has_fasttext();
bool has_cld2();
// Throw kUnsupported where the build has no such library.
std::unique_ptr<TextClassifier> open_fasttext(const std::string& path);
std::unique_ptr<TextClassifier> open_cld2();

}  // namespace octet
