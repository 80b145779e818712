#include "eval_rouge.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "eval/rouge.h"
#include "io/corpus.h"

namespace octet {

void print_rouge(const std::string& file) {
  TextOptions text{.format = CorpusFormat::kJsonLines, .utf8 = Utf8Policy::kReplace};
  CorpusReader reader(list_corpus({file}), text);
  TextCounts counts;
  int64_t lines = 0;
  std::array<std::array<double, 4>, 2> sums{};
  for (CorpusBatch batch; reader.next(batch);) {
    each_json_line(batch, reader.files(), text, counts, [&](std::string_view line, const std::string& where) {
      const nlohmann::json record = parse_json(line, where);
      const auto target = json_get<std::string>(record, "target", where);
      const auto prediction = json_get<std::string>(record, "prediction", where);
      const RougeScores scores[] = {rouge(target, prediction, false), rouge(target, prediction, true)};
      for (size_t i = 0; i < 2; ++i) {
        sums[i][0] += scores[i].rouge1.f, sums[i][1] += scores[i].rouge2.f;
        sums[i][2] += scores[i].rouge_l.f, sums[i][3] += scores[i].rouge_lsum.f;
      }
      fmt::print("{}\n", rouge_json(scores[0], scores[1]));
      ++lines;
    });
  }
  check(lines > 0, ErrorCode::kInvalidArgument, "{}: no lines of {{\"target\", \"prediction\"}}", file);
  for (size_t i = 0; i < 2; ++i) {
    for (double& sum : sums[i]) sum /= static_cast<double>(lines);
    log_info("mean F of {} pairs, {}: rouge1 {:.4f}, rouge2 {:.4f}, rougeL {:.4f}, rougeLsum {:.4f}", lines,
             i == 0 ? "plain" : "stemmed", sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  }
}

}  // namespace octet
